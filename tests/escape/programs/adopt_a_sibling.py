# Properties 8 and 60: a program cannot make its child a child of the zygote (CLONE_PARENT).
# expect: status=ok exit=0 stdout=held

import ctypes
import errno
import os
import platform
import signal

libc = ctypes.CDLL(None, use_errno=True)
CLONE = {"x86_64": 56, "aarch64": 220}[platform.machine()]
pid = libc.syscall(CLONE, ctypes.c_ulong(0x8000 | signal.SIGCHLD), None, None, None, None)
if pid == 0:
    os._exit(77)
assert pid == -1 and ctypes.get_errno() == errno.EPERM, "CLONE_PARENT worked"
print("held")
