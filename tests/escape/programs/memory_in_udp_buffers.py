# Property 47: unread datagrams.
# expect: status=ok exit=0 stdout=held
# on version 2: status=out_of_memory
# limits: memory_mb=64
# needs: root

import socket

kept = []
for _ in range(480):
    reader, writer = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in "rw")
    reader.bind(("127.0.0.1", 0))
    writer.connect(reader.getsockname())
    writer.setblocking(False)
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 24)
    kept += [reader, writer]
    for _ in range(8):
        try:
            writer.send(b"x" * 60_000)
        except OSError:
            break
kept_bytes = 0
for reader in kept[::2]:
    reader.setblocking(False)
    try:
        while True:
            kept_bytes += len(reader.recv(65536))
    except BlockingIOError:
        pass
assert kept_bytes < 128 << 20, f"{kept_bytes >> 20} MB"
print("held")
