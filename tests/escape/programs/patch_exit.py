# Property 60: a program that replaces os._exit still ends, and not in Belljar's code.
# expect: stdout=done status=failed exit=5
# limits: wall_seconds=5

import os
import sys

os._exit = lambda code: None
print("done", flush=True)
sys.exit(5)
