# Property 47: huge pages are refused, because they come from one pool of the host that no limit counts.
# expect: status=ok exit=0 stdout=held

import ctypes
import errno
import os

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
assert libc.mmap(None, ctypes.c_size_t(2 << 20), 3, 0x40022, -1, 0) == 2**64 - 1, "mmap"
assert ctypes.get_errno() == errno.ENOMEM
assert libc.memfd_create(b"x", 4) == -1, "memfd_create"
assert libc.shmget(0, ctypes.c_size_t(2 << 20), 0o5600) == -1, "shmget"
print("held")
