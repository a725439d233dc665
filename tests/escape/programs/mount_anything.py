# Property 19: neither the old nor the new mount calls work, nor do file handles.
# expect: status=ok exit=0 stdout=held

import ctypes
import errno
import os
import platform

libc = ctypes.CDLL(None, use_errno=True)
x86 = platform.machine() == "x86_64"
calls = {
    "mount": (165 if x86 else 40, b"none", b"/work", b"tmpfs", 0, None),
    "bind": (165 if x86 else 40, b"/etc", b"/work", b"", 0x1000, None),
    "remount": (165 if x86 else 40, b"none", b"/usr", b"", 0x20 | 0x1000, None),
    "umount2": (166 if x86 else 39, b"/proc", 2),
    "pivot_root": (155 if x86 else 41, b"/work", b"/work"),
    "chroot": (161 if x86 else 51, b"/work"),
    "open_tree": (428, -100, b"/", 1),
    "move_mount": (429, -100, b"/tmp", -100, b"/work", 0),
    "fsopen": (430, b"tmpfs", 0),
    "fsconfig": (431, 3, 0, b"", b"", 0),
    "fsmount": (432, 3, 0, 0),
    "fspick": (433, -100, b"/", 0),
    "mount_setattr": (442, -100, b"/usr", 0, bytes(32), 32),
    "open_tree_attr": (467, -100, b"/", 1, bytes(32), 32),
    "name_to_handle_at": (303 if x86 else 264, -100, b"/usr", bytes(128), bytes(8), 0),
    "open_by_handle_at": (304 if x86 else 265, -100, bytes(128), 0),
    "statmount": (457, bytes(64), bytes(512), 512, 0),
    "quotactl": (179 if x86 else 60, 0x80000700, b"/dev/vda", 0, bytes(64)),
    "swapon": (167 if x86 else 224, b"/work/main.py", 0),
}
for name, (number, *arguments) in calls.items():
    result = libc.syscall(number, *arguments)
    assert result == -1, f"{name} worked"
    assert ctypes.get_errno() in (errno.EPERM, errno.ENOSYS), (name, os.strerror(ctypes.get_errno()))
print("held")
