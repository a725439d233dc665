# Property 46: a program cannot take a lease on a shared file, which would block others.
# expect: status=ok exit=0 stdout=held

import fcntl
import sys

for path in ("/usr/bin/env", "/env/pyvenv.cfg", "/etc/passwd", sys.executable, "/dev/null"):
    with open(path, "rb") as file:
        for kind in (fcntl.F_RDLCK, fcntl.F_WRLCK):
            try:
                fcntl.fcntl(file, 1024, kind)  # F_SETLEASE
            except OSError:
                continue
            raise SystemExit(f"a lease on {path}")
print("held")
