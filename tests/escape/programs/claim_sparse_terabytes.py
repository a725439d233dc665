# Property 54: no file can have a larger apparent size than the limit, whatever it really holds.
# expect: status=ok exit=0 stdout=held

import errno
import os
import signal

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
for size in (8 << 40, 1 << 62, 2**63 - 1):
    descriptor = os.open("sparse", os.O_RDWR | os.O_CREAT)
    try:
        os.ftruncate(descriptor, size)
    except OSError as error:
        assert error.errno in (errno.EFBIG, errno.EINVAL), error
    else:
        raise SystemExit(f"{size} bytes")
print("held")
