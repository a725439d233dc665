# Property 6: no call that changes ids gives a program any other id.
# expect: status=ok exit=0 stdout=held

import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
uid, gid = os.getuid(), os.getgid()
for other in (0, 1, uid + 1, uid - 1, 65534, 2**31):
    for call in ("setuid", "setgid", "seteuid", "setegid"):
        assert getattr(libc, call)(other) == -1, f"{call}({other})"
    for call in ("setreuid", "setregid"):
        assert getattr(libc, call)(other, other) == -1, f"{call}({other})"
    for call in ("setresuid", "setresgid"):
        assert getattr(libc, call)(other, other, other) == -1, f"{call}({other})"
    libc.setfsuid(other)
    assert libc.setfsuid(-1) == uid, "setfsuid"
    libc.setfsgid(other)
    assert libc.setfsgid(-1) == gid, "setfsgid"
groups = (ctypes.c_uint32 * 1)(0)
assert libc.setgroups(1, groups) == -1, "setgroups"
assert libc.setgroups(0, None) == -1, "setgroups to none"
assert os.getresuid() == (uid, uid, uid) and os.getresgid() == (gid, gid, gid)
for path in ("/etc/shadow", "/etc/sudoers", "/root/.ssh", "/etc/ssh"):
    assert not os.path.exists(path), path
print("held")
