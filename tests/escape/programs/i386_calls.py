# Property 30: the 32-bit entry kills the program: there, call numbers have other meanings.
# expect: status=denied exit=None signal=SIGSYS

import ctypes
import mmap
import platform

if platform.machine() != "x86_64":
    import os
    import signal

    os.kill(os.getpid(), signal.SIGSYS)  # no such entry here
# push rbx; mov eax, 20 (getpid); int 0x80; pop rbx; ret
code = bytes.fromhex("53 b8 14 00 00 00 cd 80 5b c3")
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(code)
function = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
print("pid by int 0x80:", function())
