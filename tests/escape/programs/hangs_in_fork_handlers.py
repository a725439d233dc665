# Property 51: hooks of the interpreter that never return.
# expect: status=timed_out
# limits: wall_seconds=0.3

import os
import time

os.register_at_fork(before=lambda: time.sleep(1000))
os.fork()
