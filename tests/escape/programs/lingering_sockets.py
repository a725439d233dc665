# Properties 24 and 54: no socket can be told to wait when it is closed. One that is closed by somebody else (the host
# that was sent it, or a kernel worker that clears up after us) would make that one wait, for as long as we like.
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
