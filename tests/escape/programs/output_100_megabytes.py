# Property 52: long output is cut, and the program still succeeds.
# expect: status=ok exit=0 cut=yes
# limits: output_kb=4

import os

for _ in range(1600):
    os.write(1, b"x" * 65536)
