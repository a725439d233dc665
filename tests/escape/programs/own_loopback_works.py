# Property 38, the other side: server and client in one program talk over 127.0.0.1, ::1 and unix sockets.
# expect: status=ok exit=0 stdout="tcp4 tcp6 udp unix abstract http"

import http.server
import os
import socket
import threading
import urllib.request


def echo(server):
    peer, _ = server.accept()
    peer.sendall(peer.recv(100))
    peer.close()


said = []
for name, family, address in (("tcp4", socket.AF_INET, ("127.0.0.1", 0)), ("tcp6", socket.AF_INET6, ("::1", 0)),
                              ("udp", socket.AF_INET, ("localhost", 0)), ("unix", socket.AF_UNIX, "/tmp/s"),
                              ("abstract", socket.AF_UNIX, "\0own")):
    if name == "udp":
        a, b = (socket.socket(family, socket.SOCK_DGRAM) for _ in "ab")
        a.bind(address)
        b.sendto(name.encode(), a.getsockname())
        said.append(a.recv(100).decode())
        continue
    server = socket.socket(family)
    server.bind(address)
    server.listen()
    thread = threading.Thread(target=echo, args=(server,))
    thread.start()
    client = socket.socket(family)
    client.connect(server.getsockname())
    client.sendall(name.encode())
    said.append(client.recv(100).decode())
    thread.join()


class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"http")

    def log_message(self, *arguments):
        pass


server = http.server.HTTPServer(("127.0.0.1", 0), Page)
threading.Thread(target=server.serve_forever, daemon=True).start()
said.append(urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/").read().decode())
print(*said)
