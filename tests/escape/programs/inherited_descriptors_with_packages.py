# Property 59: with packages one more is open, for displays; no descriptor can be sent over it.
# expect: status=ok exit=0 stdout=held
# needs: root

import array
import os
import socket

import numpy

found = []
for descriptor in range(3, 70_000):
    try:
        os.fstat(descriptor)
        found.append(descriptor)
    except OSError:
        pass
assert len(found) <= 1, found
for descriptor in found:
    try:
        channel = socket.socket(fileno=os.dup(descriptor))
        channel.sendmsg([b"\0\0\0\0x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0]))])
    except OSError:
        continue
    raise SystemExit(f"the host was sent a descriptor over {descriptor}")
print("held")
