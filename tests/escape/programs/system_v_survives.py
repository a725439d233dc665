# Property 43: System V objects of the previous program are gone; message queues are refused.
# expect: status=ok exit=0 stdout=held
# run: again

import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
old = [libc.shmget(4711, 4096, 0), libc.semget(4711, 1, 0), libc.msgget(4711, 0), libc.mq_open(b"/meet", os.O_RDWR)]
assert old == [-1] * 4, old
new = [libc.shmget(4711, 4096, 0o1666), libc.semget(4711, 1, 0o1666)]
queues = [libc.msgget(4711, 0o1666), libc.mq_open(b"/meet", os.O_RDWR | os.O_CREAT, 0o666, None)]
assert min(new) >= 0 and queues == [-1, -1], (new, queues)
print("held")
