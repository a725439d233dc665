# Property 41: concurrent programs cannot reach each other's abstract sockets.
# expect: status=ok exit=0 stdout=held
# run: beside

import socket
import sys
import time

mine = socket.socket(socket.AF_UNIX)
if sys.argv[1] == "first":
    mine.bind("\0meet")
    mine.listen()
    print("planted", flush=True)
    while True:
        time.sleep(1)
try:
    mine.connect("\0meet")
except OSError:
    socket.socket(socket.AF_UNIX).bind("\0meet")
else:
    raise SystemExit("met the other program")
assert "meet" not in open("/proc/self/net/unix").read()
print("held")
