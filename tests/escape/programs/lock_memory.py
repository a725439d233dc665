# Properties 48 and 54: only a little memory can be locked.
# expect: status=ok exit=0 stdout=held

import ctypes
import mmap

libc = ctypes.CDLL(None, use_errno=True)
page = mmap.mmap(-1, 16 << 20)
address = ctypes.addressof(ctypes.c_char.from_buffer(page))
assert libc.mlock(ctypes.c_void_p(address), ctypes.c_size_t(16 << 20)) == -1, "mlock"
assert libc.mlockall(3) == -1, "mlockall"
print("held")
