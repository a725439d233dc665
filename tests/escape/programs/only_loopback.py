# Property 38: the only network interface is the loopback.
# expect: status=ok exit=0 stdout=held

import errno
import fcntl
import socket

lines = open("/proc/self/net/dev").read().splitlines()[2:]
assert [line.split(":")[0].strip() for line in lines] == ["lo"], lines
for address in ("10.0.0.1", "172.17.0.1", "192.168.0.1", "169.254.169.254", "8.8.8.8", "100.100.100.200", "255.255.255.255"):
    for kind, port in ((socket.SOCK_STREAM, 80), (socket.SOCK_DGRAM, 53)):
        with socket.socket(socket.AF_INET, kind) as attempt:
            attempt.settimeout(1)
            try:
                attempt.connect((address, port))
            except OSError as error:
                assert error.errno in (errno.ENETUNREACH, errno.EACCES, errno.EHOSTUNREACH), (address, error)
                continue
            raise SystemExit(f"reached {address}")
for address in ("fe80::1", "fd00:ec2::254", "2001:4860:4860::8888", "ff02::1"):
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as attempt:
        try:
            attempt.sendto(b"x", (address, 53))
        except OSError:
            continue
        raise SystemExit(f"sent to {address}")
for name in ("example.com", "metadata.google.internal", "host.docker.internal"):
    try:
        socket.getaddrinfo(name, 80)
    except OSError:
        continue
    raise SystemExit(f"resolved {name}")
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
    for request in (0x8914, 0x8916, 0x891C, 0x890B, 0x89A0, 0x8946, 0x400454CA):  # set flags, addresses, routes; tunnels
        try:
            fcntl.ioctl(control, request, b"lo".ljust(40, b"\0"))
        except OSError:
            continue
        raise SystemExit(f"ioctl {request:#x}")
print("held")
