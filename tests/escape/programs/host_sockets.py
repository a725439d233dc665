# Properties 38 to 40: a server on the host's loopback and its unix sockets, abstract or not, cannot be reached.
# expect: status=ok exit=0 stdout=held
# give: canaries

import os
import socket

port, path = int(os.environ["CANARY_PORT"]), os.environ["CANARY_SOCKET"]
targets = [(socket.AF_INET, (host, port)) for host in ("127.0.0.1", "127.0.0.2", "0.0.0.0", "localhost")]
targets += [(socket.AF_INET6, (host, port)) for host in ("::1", "::", "::ffff:127.0.0.1")]
targets += [(socket.AF_UNIX, "\0" + os.environ["CANARY_ABSTRACT"])]
targets += [(socket.AF_UNIX, prefix + path) for prefix in ("", "/proc/self/root", "/proc/1/root", "../../..")]
targets += [(socket.AF_UNIX, f"/{place}/docker.sock") for place in ("run", "var/run")]
for family, address in targets:
    with socket.socket(family, socket.SOCK_STREAM) as attempt:
        attempt.settimeout(2)
        try:
            attempt.connect(address)
        except OSError:
            continue
        raise SystemExit(f"connected to {address!r}")
print("held")
