# Property 51.
# expect: status=timed_out stdout=done
# limits: wall_seconds=0.3

import atexit
import time

atexit.register(time.sleep, 1000)
print("done", flush=True)
