# Property 8: neither clone nor clone3 nor fork creates a namespace; clone3 is ENOSYS, so libc falls back.
# expect: status=ok exit=0 stdout=held

import ctypes
import errno
import os
import platform
import signal

libc = ctypes.CDLL(None, use_errno=True)
CLONE = {"x86_64": 56, "aarch64": 220}[platform.machine()]
for flag in (0x10000000, 0x20000, 0x20000000, 0x40000000, 0x8000000, 0x4000000, 0x2000000, 0x7E020000):
    for high_garbage in (0, 0xDEADBEEF << 32):
        pid = libc.syscall(CLONE, ctypes.c_ulong(flag | signal.SIGCHLD | high_garbage), None, None, None, None)
        if pid == 0:
            os._exit(0)
        assert pid == -1, f"clone({flag:#x}) worked"
        assert ctypes.get_errno() == errno.EPERM, ctypes.get_errno()
for flag in (0x10000000, 0x80, 0x200000000, 0):  # user, time, CLONE_INTO_CGROUP, nothing special
    arguments = (ctypes.c_uint64 * 11)(flag, 0, 0, 0, signal.SIGCHLD)
    pid = libc.syscall(435, arguments, ctypes.c_size_t(88))
    if pid == 0:
        os._exit(0)
    assert pid == -1 and ctypes.get_errno() == errno.ENOSYS, "clone3 exists"
print("held")
