# Property 51: a call that never returns to the interpreter.
# expect: status=timed_out
# limits: wall_seconds=0.3

import re

re.match(r"(a*)*$", "a" * 64 + "b")
