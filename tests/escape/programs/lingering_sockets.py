# Properties 24 and 54: SO_LINGER has no effect. It would block whatever closes the socket, for any time: the host, if
# it was sent the socket, or a kernel worker that cleans up after the program.
# expect: status=ok exit=0 stdout=held

import socket
import struct

for family in (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX):
    with socket.socket(family) as endpoint:
        try:
            endpoint.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 1000))
        except OSError:
            continue
        armed, seconds = struct.unpack("ii", endpoint.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8))
        assert not (armed and seconds), "a close can be made to wait"
print("held")
