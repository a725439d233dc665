# Property 47: unread bytes in unix sockets.
# expect: status=out_of_memory
# limits: memory_mb=64
# needs: root

import socket

kept = []
while True:
    a, b = socket.socketpair()
    a.setblocking(False)
    kept += [a, b]
    try:
        while True:
            a.send(b"x" * 65536)
    except BlockingIOError:
        pass
