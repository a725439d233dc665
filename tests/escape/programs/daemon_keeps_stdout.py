# Properties 24 and 53: a daemon that keeps standard output open neither delays the answer nor outlives it.
# expect: status=ok exit=0 stdout=done
# limits: wall_seconds=20

import os
import signal
import time

ready, told = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    for number in range(1, 64):
        try:
            signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError):
            pass
    os.write(told, b"x")
    while True:
        time.sleep(1)
os.read(ready, 1)
print("done")
