# Property 9: setns works on nothing that a program can open: not its own namespaces, not init's, not a pidfd.
# expect: status=ok exit=0 stdout=held

import ctypes
import errno
import os

libc = ctypes.CDLL(None, use_errno=True)
opened = 0
for process in ("self", "1", "2", "thread-self"):
    try:
        kinds = os.listdir(f"/proc/{process}/ns")
    except OSError:
        continue
    for kind in kinds:
        try:
            descriptor = os.open(f"/proc/{process}/ns/{kind}", os.O_RDONLY)
        except OSError:
            continue
        opened += 1
        assert libc.setns(descriptor, 0) == -1, f"setns {process}/{kind}"
        assert ctypes.get_errno() == errno.EPERM, ctypes.get_errno()
        os.close(descriptor)
for pid in (1, os.getpid()):
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        continue
    for flag in (0x10000000, 0x20000, 0x20000000, 0x40000000, 0x7E020080):
        assert libc.setns(descriptor, flag) == -1, f"setns pidfd {pid}"
assert opened, "nothing was tried"
print("held")
