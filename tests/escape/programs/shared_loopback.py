# Property 41: concurrent programs have separate loopbacks.
# expect: status=ok exit=0 stdout=held
# run: beside

import socket
import sys
import time

PORT = 45678
if sys.argv[1] == "first":
    server, udp = socket.create_server(("0.0.0.0", PORT)), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.bind(("0.0.0.0", PORT))
    print("planted", flush=True)
    while True:
        time.sleep(1)
for host in ("127.0.0.1", "127.0.0.2", "127.255.255.254"):
    try:
        socket.create_connection((host, PORT), timeout=2)
    except OSError:
        continue
    raise SystemExit("met the other program")
socket.create_server(("0.0.0.0", PORT))
print("held")
