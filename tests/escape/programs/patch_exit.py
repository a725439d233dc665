# Property 60: os._exit does nothing any more; the program still ends, and not in our code.
# expect: stdout=done status=failed exit=5
# limits: wall_seconds=5

import os
import sys

os._exit = lambda code: None
print("done", flush=True)
sys.exit(5)
