# Property 51: the clock keeps running for a stopped program.
# expect: status=timed_out
# limits: wall_seconds=0.3

import os
import signal

os.kill(os.getpid(), signal.SIGSTOP)
