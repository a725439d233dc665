# Property 45: the network's counters do not show what the previous program did without sending anything.
# expect: status=ok exit=0 stdout=held
# run: again

import re
import socket
import struct

lines = [line.split() for line in open("/proc/self/net/snmp")]
counters = {f"{names[0]}{name}": int(value) for names, values in zip(lines[::2], lines[1::2]) for name, value in zip(names[1:], values[1:])}
changing = {name: value for name, value in counters.items() if not re.search("Default|Forwarding|Rto|MaxConn", name)}
assert not any(changing.values()), {name: value for name, value in changing.items() if value}
label = socket.inet_pton(socket.AF_INET6, "::1") + struct.pack("!I", 0x12345) + struct.pack("=BBHHHI", 0, 255, 3, 6, 6, 0)
with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as labelled:
    try:
        labelled.setsockopt(41, 32, label)  # IPV6_FLOWLABEL_MGR: refused if the label is already there
    except FileExistsError:
        raise SystemExit("a flow label has survived")
    except OSError:
        pass
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as lost:
    for _ in range(50):
        try:
            lost.sendto(b"x", ("10.1.2.3", 9))
        except OSError:
            pass
print("held")
