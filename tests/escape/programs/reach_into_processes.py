# Property 23: no call reaches into another process, not even a child.
# expect: status=ok exit=0 stdout=held

import ctypes
import errno
import os
import platform
import signal

libc = ctypes.CDLL(None, use_errno=True)
x86 = platform.machine() == "x86_64"
child = os.fork()
if child == 0:
    signal.pause()
buffer = ctypes.create_string_buffer(8)
vector = (ctypes.c_void_p * 2)(ctypes.addressof(buffer), 8)
pidfd = os.pidfd_open(child)
for pid in (child, 1, os.getpid()):
    for name, (number, *arguments) in {
        "ptrace attach": (101 if x86 else 117, 16, pid, 0, 0),
        "ptrace seize": (101 if x86 else 117, 0x4206, pid, 0, 0),
        "ptrace me": (101 if x86 else 117, 0, 0, 0, 0),
        "process_vm_readv": (310 if x86 else 270, pid, vector, 1, vector, 1, 0),
        "process_vm_writev": (311 if x86 else 271, pid, vector, 1, vector, 1, 0),
        "kcmp": (312 if x86 else 272, pid, os.getpid(), 0, 0, 0),
        "pidfd_getfd": (438, pidfd, 0, 0),
        "process_madvise": (440, pidfd, vector, 1, 4, 0),
        "process_mrelease": (448, pidfd, 0),
        "move_pages": (279 if x86 else 239, pid, 0, 0, 0, 0, 0),
        "migrate_pages": (256 if x86 else 238, pid, 1, vector, vector),
        "get_robust_list": (274 if x86 else 100, pid, vector, vector),
    }.items():
        assert libc.syscall(number, *arguments) == -1, f"{name} on {pid}"
        assert ctypes.get_errno() in (errno.EPERM, errno.ENOSYS), (name, os.strerror(ctypes.get_errno()))
os.kill(child, signal.SIGKILL)
print("held")
