# Property 52: much output is cut, not punished.
# expect: status=ok exit=0 cut=yes
# limits: output_kb=4

import os

for _ in range(1600):
    os.write(1, b"x" * 65536)
