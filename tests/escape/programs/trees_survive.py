# Property 45: trees that are hard to delete, and a deleted running program, are gone in the next run.
# expect: status=ok exit=0 stdout=held
# run: again

import os
import socket

for place, expected in (("/work", ["main.py"]), ("/tmp", []), ("/dev/shm", [])):
    assert os.listdir(place) == expected, (place, os.listdir(place))
    room = os.statvfs(place)
    assert room.f_files - room.f_ffree == 1 + len(expected), "files without a name are left"
    os.mkdir(f"{place}/closed")
    os.symlink("..", f"{place}/closed/up")
    os.mkfifo(f"{place}/closed/pipe")
    socket.socket(socket.AF_UNIX).bind(f"{place}/closed/socket")
    os.link(f"{place}/closed/pipe", f"{place}/again")
    os.chmod(f"{place}/closed", 0)
    os.chdir(place)
    for _ in range(300):
        os.mkdir("deeper")
        os.chdir("deeper")
os.unlink("/work/main.py")
os.makedirs("/work/main.py/__main__.py")
print("held")
