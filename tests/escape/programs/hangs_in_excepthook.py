# Property 51.
# expect: status=timed_out
# limits: wall_seconds=0.3

import sys
import time

sys.excepthook = lambda *error: time.sleep(1000)
raise ValueError
