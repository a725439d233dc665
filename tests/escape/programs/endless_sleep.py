# Property 51: doing nothing takes time, too.
# expect: status=timed_out stdout=begun
# limits: wall_seconds=0.3

import time

print("begun", flush=True)
time.sleep(1000)
