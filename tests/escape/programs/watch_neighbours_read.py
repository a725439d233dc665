# Property 46: a program cannot see which shared files others open: not by inotify, dnotify or fanotify.
# expect: status=ok exit=0 stdout=held

import ctypes
import errno
import fcntl
import os

libc = ctypes.CDLL(None, use_errno=True)
watch = libc.inotify_init()
for path in (b"/usr/bin", b"/env", b"/usr/lib", b"/etc/passwd"):
    for mask in (0x1, 0x10, 0x20, 0xFFF, 0x21):  # access, close, open, all
        assert libc.inotify_add_watch(watch, path, mask) == -1, (path, mask)
        assert ctypes.get_errno() in (errno.EPERM, errno.ENOSYS)  # the latter where there is no watching at all
directory = os.open("/usr/bin", os.O_RDONLY)
try:
    fcntl.fcntl(directory, fcntl.F_NOTIFY, 1)
except OSError:
    print("held")
