# Property 32: no option leads to a compiler in the kernel, to its TLS or to tunnels.
# expect: status=ok exit=0 stdout=held

import socket
import struct

stream, datagram = socket.socket(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
options = {
    "SO_ATTACH_FILTER": (stream, 1, 26, struct.pack("HxxxxxxQ", 0, 0)),
    "SO_ATTACH_BPF": (stream, 1, 50, bytes(4)),
    "SO_ATTACH_REUSEPORT_CBPF": (stream, 1, 51, bytes(16)),
    "SO_BINDTODEVICE": (stream, 1, 25, b"eth0\0"),
    "SO_MARK": (stream, 1, 36, bytes([1, 0, 0, 0])),
    "SO_DEBUG": (stream, 1, 1, bytes([1, 0, 0, 0])),
    "SO_SNDBUFFORCE": (stream, 1, 32, struct.pack("i", 1 << 30)),
    "SO_RCVBUFFORCE": (stream, 1, 33, struct.pack("i", 1 << 30)),
    "TCP_ULP": (stream, 6, 31, b"tls\0"),
    "TCP_REPAIR": (stream, 6, 19, bytes([1, 0, 0, 0])),
    "UDP_ENCAP": (datagram, 17, 100, bytes([2, 0, 0, 0])),
    "IPT_SO_SET_REPLACE": (stream, 0, 64, bytes(96)),
    "IP_TRANSPARENT": (stream, 0, 19, bytes([1, 0, 0, 0])),
    "SOL_TLS": (stream, 282, 1, bytes(40)),
    "SOL_ALG": (stream, 279, 1, bytes(16)),
    "SOL_NETLINK": (stream, 270, 1, bytes(4)),
    "MRT_INIT": (datagram, 0, 200, bytes([1, 0, 0, 0])),
}
for name, (which, level, option, value) in options.items():
    try:
        which.setsockopt(level, option, value)
    except OSError:
        continue
    raise SystemExit(f"{name} was set")
print("held")
