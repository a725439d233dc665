# Properties 45 and 47: System V segments left by the previous program are not charged to the next one.
# expect: status=ok exit=0 stdout=held
# run: again
# limits: memory_mb=256
# needs: root

import ctypes

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = libc.shmat.restype = ctypes.c_void_p
taken = libc.mmap(None, ctypes.c_size_t(96 << 20), 3, 0x8022, -1, 0)  # private, anonymous, at once
assert taken != 2**64 - 1
libc.munmap(ctypes.c_void_p(taken), ctypes.c_size_t(96 << 20))
for _ in range(6):
    segment = libc.shmget(0, ctypes.c_size_t(38 << 20), 0o1600)
    address = libc.shmat(segment, None, 0)
    ctypes.memset(address, 1, 38 << 20)
    libc.shmdt(ctypes.c_void_p(address))
print("held")
