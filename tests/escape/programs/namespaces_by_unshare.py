# Property 8: unshare creates no namespace of any kind.
# expect: status=ok exit=0 stdout=held

import ctypes
import errno
import subprocess

libc = ctypes.CDLL(None, use_errno=True)
kinds = {"user": 0x10000000, "mnt": 0x20000, "pid": 0x20000000, "net": 0x40000000, "ipc": 0x8000000,
         "uts": 0x4000000, "cgroup": 0x2000000, "time": 0x80}
for name, flag in {**kinds, "all": sum(kinds.values()), "files": 0x400, "fs": 0x200}.items():
    assert libc.unshare(flag) == -1, f"unshare({name}) worked"
    assert ctypes.get_errno() in (errno.EPERM, errno.ENOSYS), (name, ctypes.get_errno())
for options in (["-U"], ["-r"], ["-Urm"], ["-n"], ["-p", "-f"], ["-m"]):
    tool = subprocess.run(["/usr/bin/unshare", *options, "/bin/true"], capture_output=True)
    assert tool.returncode != 0, options
print("held")
