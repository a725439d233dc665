# Property 45: the kernel removes a socket that only its own messages refer to later; it does not reach the next run.
# expect: status=ok exit=0 stdout=held
# run: again

import array
import socket

assert "leftover" not in open("/proc/self/net/unix").read(), "a socket of the program before"
listener = socket.socket(socket.AF_UNIX)
listener.bind("\0leftover")
listener.listen()
for _ in range(20):
    a, b = socket.socketpair()
    rights = array.array("i", [a.fileno(), b.fileno(), listener.fileno()])
    a.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    b.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
print("held")
