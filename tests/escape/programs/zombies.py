# Property 26: children without a waiting parent do not stay, nor do those of a dead parent.
# expect: status=ok exit=0 stdout=held
# limits: processes=16

import os
import time

for _ in range(60):  # far more than fit, unless orphans are reaped
    middle = os.fork()
    if middle == 0:
        if os.fork() == 0:
            os._exit(0)
        os._exit(0)
    os.waitpid(middle, 0)
    deadline = time.monotonic() + 5
    while len([name for name in os.listdir("/proc") if name.isdigit()]) > 8 and time.monotonic() < deadline:
        time.sleep(0.001)
for _ in range(8):
    if os.fork() == 0:
        os._exit(0)
print("held")
