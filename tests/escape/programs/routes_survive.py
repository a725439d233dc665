# Property 45: a route that the previous program looked up is gone; a connected IPv6 socket leaves one.
# expect: status=ok exit=0 stdout=held
# run: again

import os
import socket

try:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # each processor has a copy of its own
    before = open("/proc/self/net/rt6_stats").read()
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as looking:
        looking.connect(("::1", 9))
except OSError:
    raise SystemExit(print("held"))  # without IPv6
assert open("/proc/self/net/rt6_stats").read() != before, f"it was there already: {before}"
print("held")
