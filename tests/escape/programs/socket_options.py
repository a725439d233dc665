# Property 32: no option reaches netfilter, IPsec, the kernel's BPF compiler, its TLS or tunnels; and none that
# requires a capability reaches the kernel's code for it.
# expect: status=ok exit=0 stdout=held

import errno
import socket
import struct

stream, datagram = socket.socket(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
stream6 = socket.socket(socket.AF_INET6)
one = bytes([1, 0, 0, 0])
options = {
    "SO_ATTACH_FILTER": (stream, 1, 26, struct.pack("HxxxxxxQ", 0, 0)),
    "SO_ATTACH_BPF": (stream, 1, 50, bytes(4)),
    "SO_ATTACH_REUSEPORT_CBPF": (stream, 1, 51, bytes(16)),
    "SO_BINDTODEVICE": (stream, 1, 25, b"lo\0"),
    "SO_MARK": (stream, 1, 36, one),
    "SO_DEBUG": (stream, 1, 1, one),
    "SO_SNDBUFFORCE": (stream, 1, 32, struct.pack("i", 1 << 30)),
    "SO_RCVBUFFORCE": (stream, 1, 33, struct.pack("i", 1 << 30)),
    "SO_TIMESTAMP": (datagram, 1, 29, one),
    "SO_PEERSEC": (stream, 1, 31, bytes(64)),
    "SO_ZEROCOPY": (stream, 1, 60, one),
    "TCP_ULP": (stream, 6, 31, b"tls\0"),
    "TCP_CONGESTION": (stream, 6, 13, b"reno"),
    "TCP_REPAIR": (stream, 6, 19, one),
    "TCP_MD5SIG": (stream, 6, 14, struct.pack("=HH4s120xBBHI80s", 2, 0, bytes([127, 0, 0, 1]), 0, 0, 4, 0, b"key!")),
    "TCP_AO_ADD_KEY": (stream, 6, 38, bytes(288)),
    "TCP_FASTOPEN": (stream, 6, 23, one),
    "TCP_ZEROCOPY_RECEIVE": (stream, 6, 35, bytes(64)),
    "UDP_ENCAP": (datagram, 17, 100, bytes([2, 0, 0, 0])),
    "UDP_SEGMENT": (datagram, 17, 103, one),
    "IPT_SO_SET_REPLACE": (stream, 0, 64, bytes(96)),
    "IPT_SO_GET_ENTRIES": (stream, 0, 65, b"filter".ljust(40, b"\0")),
    "IP6T_SO_SET_REPLACE": (stream6, 41, 64, bytes(96)),
    "SO_ORIGINAL_DST": (stream, 0, 80, bytes(16)),
    "IP_OPTIONS": (stream, 0, 4, bytes([131, 7, 4, 127, 0, 0, 1, 0])),
    "IP_IPSEC_POLICY": (stream, 0, 16, bytes(64)),
    "IP_XFRM_POLICY": (stream, 0, 17, bytes(64)),
    "IP_TRANSPARENT": (stream, 0, 19, one),
    "IPV6_ADDRFORM": (stream6, 41, 1, bytes([2, 0, 0, 0])),
    "IPV6_XFRM_POLICY": (stream6, 41, 35, bytes(64)),
    "IPV6_RTHDR": (stream6, 41, 57, bytes(24)),
    "SOL_TLS": (stream, 282, 1, bytes(40)),
    "SOL_ALG": (stream, 279, 1, bytes(16)),
    "SOL_NETLINK": (stream, 270, 1, bytes(4)),
    "MRT_INIT": (datagram, 0, 200, one),
}
for name, (which, level, option, value) in options.items():
    for call in (lambda: which.setsockopt(level, option, value), lambda: which.getsockopt(level, option, len(value))):
        try:
            call()
        except OSError as error:
            assert error.errno == errno.ENOPROTOOPT, (name, error)
            continue
        raise SystemExit(f"{name} was set or read")
print("held")
