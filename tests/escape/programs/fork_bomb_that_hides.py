# Properties 24, 28 and 50: every child starts its own session, blocks signals, and its parent exits at once.
# expect: status=timed_out
# limits: wall_seconds=0.7
# needs: root

import os
import signal

signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
main = os.getpid()
while True:
    try:
        if os.fork():
            if os.getpid() != main:
                os._exit(0)
        else:
            os.setsid()
    except OSError:
        pass
