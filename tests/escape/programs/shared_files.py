# Properties 41 and 45: files in /work, /tmp and /dev/shm, and locks on them, are private to a program.
# expect: status=ok exit=0 stdout=held
# run: beside

import fcntl
import os
import sys
import time
from multiprocessing import shared_memory

PLACES = ("/work", "/tmp", "/dev/shm")
if sys.argv[1] == "first":
    kept = []
    for place in PLACES:
        file = open(f"{place}/meet", "w+")
        file.write("hello")
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        kept.append(file)
    memory = shared_memory.SharedMemory("meet2", create=True, size=4096)
    print("planted", flush=True)
    while True:
        time.sleep(1)
for place in PLACES:
    assert sorted(os.listdir(place)) == (["main.py"] if place == "/work" else []), os.listdir(place)
try:
    shared_memory.SharedMemory("meet2")
except FileNotFoundError:
    pass
else:
    raise SystemExit("met in shared memory")
print("held")
