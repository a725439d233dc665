# Properties 41 and 43: System V memory and semaphores belong to one jail; message queues are refused.
# expect: status=ok exit=0 stdout=held
# run: beside

import ctypes
import os
import sys
import time

libc = ctypes.CDLL(None, use_errno=True)
create = 0o1666 if sys.argv[1] == "first" else 0
made = [libc.shmget(4711, 4096, create), libc.semget(4711, 1, create)]
queues = [libc.msgget(4711, create), libc.mq_open(b"/meet", os.O_RDWR | (os.O_CREAT if create else 0), 0o666, None)]
assert queues == [-1, -1], queues
if sys.argv[1] == "first":
    assert min(made) >= 0, made
    print("planted", flush=True)
    while True:
        time.sleep(1)
assert made == [-1, -1], made
print("held")
