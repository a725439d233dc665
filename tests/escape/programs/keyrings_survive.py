# Property 44: no keyring can be used, so none carries data to the next program.
# expect: status=ok exit=0 stdout=held
# run: again

import ctypes
import errno
import platform

libc = ctypes.CDLL(None, use_errno=True)
x86 = platform.machine() == "x86_64"
for ring in (-1, -2, -3, -4, -5, -6, -7):
    for number, *arguments in ((248 if x86 else 217, b"user", b"note", b"message", 7, ring),
                               (250 if x86 else 219, 10, ring, b"user", b"note", 0),
                               (250 if x86 else 219, 11, ring, bytes(64), 64),
                               (250 if x86 else 219, 1, b"joined"),
                               (249 if x86 else 218, b"user", b"note", None, ring)):
        assert libc.syscall(number, *arguments) == -1 and ctypes.get_errno() in (errno.EPERM, errno.ENOSYS), ring
print("held")
