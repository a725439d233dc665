# Property 35: no terminal exists, none can be created, and no input can be injected into one.
# expect: status=ok exit=0 stdout=held

import fcntl
import os
import termios

for path in ("/dev/tty", "/dev/console", "/dev/ptmx", "/dev/pts/ptmx", "/dev/pts/0", "/dev/tty0", "/dev/vcs", "/dev/ttyS0"):
    try:
        os.open(path, os.O_RDWR)
    except OSError:
        continue
    raise SystemExit(path)
for descriptor in (0, 1, 2):
    assert not os.isatty(descriptor)
    for request in (termios.TIOCSTI, 0x541C):  # and TIOCLINUX
        for number in (request, request | 1 << 32, request | 0xFFFFFFFF << 32):
            try:
                fcntl.ioctl(descriptor, number, b"x")
            except (OSError, OverflowError):
                continue
            raise SystemExit(f"typed {number:#x}")
assert os.open(os.ctermid(), os.O_RDWR) if os.path.exists(os.ctermid()) else True
print("held")
