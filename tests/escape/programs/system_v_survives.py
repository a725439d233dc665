# Property 43: System V objects and POSIX queues of the program before are gone.
# expect: status=ok exit=0 stdout=held
# run: again

import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
old = [libc.shmget(4711, 4096, 0), libc.semget(4711, 1, 0), libc.msgget(4711, 0), libc.mq_open(b"/meet", os.O_RDWR)]
assert old == [-1] * 4, old
new = [libc.shmget(4711, 4096, 0o1666), libc.semget(4711, 1, 0o1666), libc.msgget(4711, 0o1666)]
libc.mq_open(b"/meet", os.O_RDWR | os.O_CREAT, 0o666, None)  # may be refused
assert min(new) >= 0, new
print("held")
