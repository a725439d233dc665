# Property 47: System V segments, which exist without any process.
# expect: status=out_of_memory
# limits: memory_mb=64
# needs: root

import ctypes

libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
for _ in range(64):
    segment = libc.shmget(0, ctypes.c_size_t(4 << 20), 0o1600)
    address = libc.shmat(segment, None, 0)
    ctypes.memset(address, 1, 4 << 20)
    libc.shmdt(ctypes.c_void_p(address))
