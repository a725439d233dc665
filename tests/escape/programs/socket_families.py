# Property 32: only unix and internet sockets; none that reaches the hypervisor, the kernel or the network card.
# expect: status=ok exit=0 stdout=held

import errno
import socket

allowed = {socket.AF_UNIX, socket.AF_INET, socket.AF_INET6}
for family in range(64):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_RDM, socket.SOCK_SEQPACKET, 10):
        for protocol in (0, 1, 6, 17, 58, 132, 255, 262, 0x0300):
            try:
                made = socket.socket(family, kind, protocol)
            except OSError as error:
                refusals = (errno.EPERM, errno.EACCES, errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT, errno.ESOCKTNOSUPPORT)
                assert error.errno in (*refusals, errno.EINVAL, errno.EPROTOTYPE), (family, kind, protocol, error)
                continue
            made.close()
            assert family in allowed, f"family {family}"
            assert kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM) or family == socket.AF_UNIX, (family, kind)
            own = {socket.SOCK_STREAM: 6, socket.SOCK_DGRAM: 17}  # any other would have the kernel look for a module
            assert protocol in ((0, 1) if family == socket.AF_UNIX else (0, own[kind])), (family, kind, protocol)
print("held")
