# Property 37: 0, 1 and 2 are /dev/null and two pipes, and no ioctl on them reaches anything else.
# expect: status=ok exit=0 stdout=held

import fcntl
import os
import stat

zero = os.fstat(0)
assert stat.S_ISCHR(zero.st_mode) and zero.st_rdev == os.makedev(1, 3), zero
for descriptor in (1, 2):
    assert stat.S_ISFIFO(os.fstat(descriptor).st_mode)
    assert fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY
assert os.fstat(1).st_ino != os.fstat(2).st_ino
allowed = {0x541B, 0x5421, 0x5450, 0x5451, 0x5452, 0x5460, 2}  # FIONREAD, FIONBIO, FIO(N)CLEX, FIOASYNC, FIOQSIZE, FIGETBSZ
for descriptor in (0, 1, 2):
    for request in [*range(0x5400, 0x5480), *range(0x8900, 0x8A00), 0x40086602, 0x6611, 0xC0185879, 0x5401, 0xC0045877]:
        if request in allowed:
            continue
        try:
            fcntl.ioctl(descriptor, request, bytes(64))
        except OSError:
            continue
        raise SystemExit(f"ioctl {request:#x} on {descriptor}")
print("held")
