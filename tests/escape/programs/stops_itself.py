# Property 51: a stopped program does not stop the clock.
# expect: status=timed_out
# limits: wall_seconds=0.3

import os
import signal

os.kill(os.getpid(), signal.SIGSTOP)
