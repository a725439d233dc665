# Property 32: priority-inheriting futexes are refused; other futexes, and threads, work.
# expect: status=ok exit=0 stdout=held

import ctypes
import errno
import platform
import threading

libc = ctypes.CDLL(None, use_errno=True)
futex = 202 if platform.machine() == "x86_64" else 98
for operation in (6, 7, 8, 11, 12, 13):
    for flags in (0, 0x80, 0x180):
        word = ctypes.c_uint(0)
        answer = libc.syscall(futex, ctypes.byref(word), operation | flags, 0, None, ctypes.byref(word), 0)
        assert answer == -1 and ctypes.get_errno() == errno.ENOSYS, (operation, flags, answer)
attributes = ctypes.create_string_buffer(64)
libc.pthread_mutexattr_init(attributes)
libc.pthread_mutexattr_setprotocol(attributes, 1)  # PTHREAD_PRIO_INHERIT
assert libc.pthread_mutex_init(ctypes.create_string_buffer(64), attributes) == errno.ENOTSUP
done = threading.Event()
threading.Thread(target=done.set).start()
assert done.wait(10)
print("held")
