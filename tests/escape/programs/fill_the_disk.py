# Property 14: each writable directory holds as much as its limit and no more.
# expect: status=ok exit=0 stdout=held
# limits: disk_mb=16

import errno
import os

for place in ("/work", "/tmp", "/dev/shm"):
    taken = 0
    try:
        with open(f"{place}/full", "wb", buffering=0) as file:
            while taken < 64 << 20:
                taken += file.write(b"x" * 65536)
    except OSError as error:
        assert error.errno == errno.ENOSPC, error
    assert 15 << 20 <= taken <= 16 << 20, (place, taken)
    os.unlink(f"{place}/full")
    try:
        descriptor = os.open(f"{place}/claimed", os.O_RDWR | os.O_CREAT)
        os.posix_fallocate(descriptor, 0, 64 << 20)
    except OSError as error:
        assert error.errno == errno.ENOSPC, error
    else:
        raise SystemExit(f"claimed 64 MB in {place}")
    os.unlink(f"{place}/claimed")
print("held")
