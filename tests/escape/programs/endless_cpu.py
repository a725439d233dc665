# Property 51: CPU time is limited separately from wall time, for all processes together.
# expect: status=timed_out
# limits: wall_seconds=20 cpu_seconds=0.5
# needs: root

import os

for _ in range(3):
    os.fork()
while True:
    pass
