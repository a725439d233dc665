# Properties 28 and 50: the number of processes is limited, and the bomb ends with its time.
# expect: status=timed_out
# limits: wall_seconds=0.7
# needs: root

import os

while True:
    try:
        os.fork()
    except OSError:
        pass
