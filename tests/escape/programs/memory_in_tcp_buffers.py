# Property 47: unread bytes on the loopback; the kernel counts them separately, in one budget for all.
# expect: status=ok exit=0 stdout=held
# limits: memory_mb=64
# needs: root

import socket

server, kept, taken = socket.create_server(("127.0.0.1", 0), backlog=100), [], 0
for _ in range(60):
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 24)
    client.settimeout(1)
    try:
        client.connect(server.getsockname())
        peer = server.accept()[0]
    except OSError:
        break
    kept += [client, peer]
    client.setblocking(False)
    try:
        while True:
            taken += client.send(b"x" * 262144)
    except BlockingIOError:
        pass
    assert taken < 128 << 20, f"{taken >> 20} MB and more"
print("held")
