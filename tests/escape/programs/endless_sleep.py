# Property 51: a sleeping program uses up its wall time, too.
# expect: status=timed_out stdout=begun
# limits: wall_seconds=0.3

import time

print("begun", flush=True)
time.sleep(1000)
