# Property 14: the number of files is limited, including empty ones, links and directories.
# expect: status=ok exit=0 stdout=held
# limits: disk_mb=16 wall_seconds=20

import errno
import os

for place in ("/work", "/tmp", "/dev/shm"):
    for make in (lambda path: os.close(os.open(path, os.O_CREAT)), os.mkdir, lambda path: os.symlink("x" * 100, path)):
        made = 0
        try:
            while made < 20_000:
                make(f"{place}/{make.__name__}{id(make)}{made}")
                made += 1
        except OSError as error:
            assert error.errno == errno.ENOSPC, error
        else:
            raise SystemExit(f"{made} entries in {place}")
print("held")
