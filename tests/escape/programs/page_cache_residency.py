# Property 46: a program cannot find out which pages of shared files are cached, and so what others have read.
# expect: status=ok exit=0 stdout=held

import ctypes
import mmap
import os

libc = ctypes.CDLL(None, use_errno=True)
descriptor = os.open("/usr/bin/env", os.O_RDONLY)
try:
    os.preadv(descriptor, [bytearray(1)], 0, os.RWF_NOWAIT)
except BlockingIOError:
    raise SystemExit("RWF_NOWAIT says that a page is absent")
except OSError:
    pass
else:
    raise SystemExit("RWF_NOWAIT says that a page is there")
assert libc.syscall(451, descriptor, bytes(16), bytes(40), 0) == -1, "cachestat"
size = os.fstat(descriptor).st_size
mapped = mmap.mmap(descriptor, size, prot=mmap.PROT_READ)
print("held")
