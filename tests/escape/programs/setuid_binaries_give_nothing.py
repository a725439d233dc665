# Property 7: every writable directory is nosuid and nodev, and no setuid binary of the system works.
# expect: status=ok exit=0 stdout=held

import glob
import os
import shutil
import stat
import subprocess

for place in ("/", "/usr", "/work", "/tmp", "/dev/shm", "/proc", "/env"):
    flags = os.statvfs(place).f_flag
    assert flags & os.ST_NOSUID and flags & os.ST_NODEV, (place, flags)
for place in ("/work", "/tmp", "/dev/shm"):
    copy = f"{place}/id"
    shutil.copy("/usr/bin/id", copy)
    os.chmod(copy, 0o6755)
    assert subprocess.run([copy, "-u"], capture_output=True, text=True).stdout.strip() == str(os.getuid()), place
    assert subprocess.run([copy, "-g"], capture_output=True, text=True).stdout.strip() == str(os.getgid()), place
for path in [*glob.glob("/usr/bin/*"), *glob.glob("/usr/sbin/*")]:
    if os.path.isfile(path) and os.stat(path).st_mode & (stat.S_ISUID | stat.S_ISGID) and os.access(path, os.X_OK):
        try:
            with subprocess.Popen([path, "--help"], stdin=subprocess.DEVNULL, stdout=-3, stderr=-3) as child:
                for line in open(f"/proc/{child.pid}/status"):
                    assert not line.startswith("Uid:") or set(line.split()[1:]) == {str(os.getuid())}, (path, line)
                child.kill()
        except (FileNotFoundError, PermissionError, ProcessLookupError):
            pass
print("held")
