# Property 64: a forked child that reaches the end of the program ends there and is not taken for the program.
# expect: status=failed exit=7

import os
import sys

for _ in range(4):
    if os.fork() == 0:
        break
else:
    for _ in range(4):
        assert os.wait()[1] == 0
    sys.exit(7)
