# Property 30: x32 call numbers are refused.
# expect: status=denied exit=None signal=SIGSYS

import ctypes
import platform

if platform.machine() != "x86_64":
    import os
    import signal

    os.kill(os.getpid(), signal.SIGSYS)  # no such numbers here
libc = ctypes.CDLL(None)
print("pid by x32:", libc.syscall(0x40000000 | 39))
