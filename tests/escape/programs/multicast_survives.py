# Property 45: no program can join a multicast group, whose record and timer would outlive it in the jail.
# expect: status=ok exit=0 stdout=held
# run: again

import socket
import struct

group, group6 = socket.inet_aton("239.1.2.3"), socket.inet_pton(socket.AF_INET6, "ff02::4711")
loopback = socket.inet_aton("127.0.0.1")
plain = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
plain6 = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
address = struct.pack("=HxxI8x", socket.AF_INET, struct.unpack("=I", group)[0]).ljust(128, b"\0")
address6 = struct.pack("=HxxI16sI", socket.AF_INET6, 0, group6, 1).ljust(128, b"\0")
joins = {
    "IP_ADD_MEMBERSHIP": (plain, 0, 35, group + loopback),
    "IP_ADD_SOURCE_MEMBERSHIP": (plain, 0, 39, group + loopback + loopback),
    "MCAST_JOIN_GROUP": (plain, 0, 42, struct.pack("=I4x", 1) + address),
    "MCAST_JOIN_SOURCE_GROUP": (plain, 0, 46, struct.pack("=I4x", 1) + address + address),
    "IPV6_JOIN_GROUP": (plain6, 41, 20, group6 + struct.pack("=I", 1)),
    "IPV6_JOIN_ANYCAST": (plain6, 41, 27, group6 + struct.pack("=I", 1)),
    "MCAST_JOIN_GROUP for IPv6": (plain6, 41, 42, struct.pack("=I4x", 1) + address6),
}
for name, (which, *option) in joins.items():
    try:
        which.setsockopt(*option)
    except OSError:
        continue
    raise SystemExit(f"{name} was accepted")
joined = open("/proc/self/net/igmp").read().split()
assert "030201EF" not in joined, joined
print("held")
