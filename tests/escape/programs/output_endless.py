# Property 52: endless output without a newline ends the program.
# expect: status=output_limit cut=yes
# limits: output_kb=4 wall_seconds=30 cpu_seconds=30

import sys

while True:
    sys.stdout.write("x" * 65536)
