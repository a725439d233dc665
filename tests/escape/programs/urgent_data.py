# Property 32: no kind of socket can send urgent data (CVE-2025-38236).
# expect: status=ok exit=0 stdout=held

import ctypes
import errno
import socket

libc = ctypes.CDLL(None, use_errno=True)


class Piece(ctypes.Structure):
    _fields_ = [("base", ctypes.c_char_p), ("length", ctypes.c_size_t)]


class Message(ctypes.Structure):
    _fields_ = [("name", ctypes.c_void_p), ("name_length", ctypes.c_uint), ("pieces", ctypes.POINTER(Piece)),
                ("count", ctypes.c_size_t), ("control", ctypes.c_void_p), ("control_length", ctypes.c_size_t),
                ("flags", ctypes.c_int), ("sent", ctypes.c_uint)]


listening = socket.create_server(("127.0.0.1", 0))
connected = socket.create_connection(listening.getsockname())
for endpoint in (socket.socketpair()[0], connected):
    message = Message(pieces=ctypes.pointer(Piece(b"x", 1)), count=1)
    descriptor = endpoint.fileno()
    calls = {
        "send": lambda: libc.send(descriptor, b"x", 1, socket.MSG_OOB),
        "sendmsg": lambda: libc.sendmsg(descriptor, ctypes.byref(message), socket.MSG_OOB | socket.MSG_DONTWAIT),
        "sendmmsg": lambda: libc.sendmmsg(descriptor, ctypes.byref(message), 1, socket.MSG_OOB),
    }
    for name, call in calls.items():
        assert call() == -1 and ctypes.get_errno() == errno.EOPNOTSUPP, name
print("held")
