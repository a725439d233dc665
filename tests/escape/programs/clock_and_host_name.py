# A program can read facts about the machine but not change them, and it does not see the host's name.
# expect: status=ok exit=0 stdout=held

import os
import socket
import time

assert socket.gethostname() == os.uname().nodename == "belljar"
for attempt in (lambda: time.clock_settime(time.CLOCK_REALTIME, 0), lambda: socket.sethostname("evil")):
    try:
        attempt()
    except OSError:
        continue
    raise SystemExit("changed")
print("held")
