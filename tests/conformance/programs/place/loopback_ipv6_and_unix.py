import socket
for family, address in ((socket.AF_INET6, ("::1", 0)), (socket.AF_UNIX, "socket"), (socket.AF_UNIX, "\0abstract-name")):
    with socket.socket(family) as server:
        server.bind(address)
        server.listen()
        with socket.socket(family) as client:
            client.connect(server.getsockname())
            peer, _ = server.accept()
            client.sendall(b"hi")
            print(peer.recv(10))
            peer.close()
a, b = socket.socketpair()
a.send(b"pair")
print(b.recv(10))
a.close(), b.close()
