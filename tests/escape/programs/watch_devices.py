# Property 46: a program cannot count writes of others to /dev/null: nodes are its own, or cannot be watched.
# expect: status=ok exit=0 stdout=held
# run: beside

import ctypes
import errno
import os
import select
import subprocess
import sys
import time

NODES = ("null", "zero", "full", "random", "urandom")
if sys.argv[1] == "first":
    print("planted", flush=True)
    while True:
        subprocess.run(["true"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        for name in NODES:
            try:
                with open(f"/dev/{name}", "wb", buffering=0) as node:
                    node.write(b"x")
            except OSError:
                pass  # full, or not to be written to
libc = ctypes.CDLL(None, use_errno=True)
watch = libc.inotify_init()
if watch < 0:
    assert ctypes.get_errno() == errno.ENOSYS
    assert libc.inotify_add_watch(0, b"/work", 0x2) == -1 and ctypes.get_errno() == errno.ENOSYS
    raise SystemExit(print("held"))
for name in NODES:
    assert libc.inotify_add_watch(watch, f"/dev/{name}".encode(), 0x2 | 0x4 | 0x8) >= 0  # modify, attributes, close
    assert libc.inotify_add_watch(watch, b"/dev", 0x2 | 0x4 | 0x8 | 0x100 | 0x200) >= 0
seen, deadline = b"", time.monotonic() + 1.0
while select.select([watch], [], [], max(0.0, deadline - time.monotonic()))[0]:
    seen += os.read(watch, 65536)
assert not seen, f"{len(seen) // 16} events"
open("/dev/null", "wb", buffering=0).write(b"x")
assert select.select([watch], [], [], 10.0)[0], "not even its own"
print("held")
