# Property 15: /dev has only what programs need, and none of it reaches hardware.
# expect: status=ok exit=0 stdout=held

import os
import stat

allowed = {"null", "zero", "full", "random", "urandom", "fd", "stdin", "stdout", "stderr", "shm"}
found = set(os.listdir("/dev"))
assert found <= allowed, found - allowed
for name in ("null", "zero", "full", "random", "urandom"):
    assert stat.S_ISCHR(os.stat(f"/dev/{name}").st_mode), name
assert os.open("/dev/null", os.O_RDWR) and open("/dev/zero", "rb").read(4) == bytes(4)
for name in ("mem", "kmem", "port", "kvm", "fuse", "vda", "sda", "loop-control", "kmsg", "vsock", "vhost-vsock", "net/tun",
             "tty", "console", "ptmx", "pts", "userfaultfd", "hpet", "mapper", "mqueue", "hugepages", "uinput", "dri"):
    assert not os.path.lexists(f"/dev/{name}"), name
print("held")
