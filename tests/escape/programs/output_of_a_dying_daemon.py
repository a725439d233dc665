# Property 53: what a daemon writes after the program's end belongs to nobody, and nobody waits for it.
# expect: status=ok exit=0
# limits: wall_seconds=30

import os

if os.fork() == 0:
    os.setsid()
    while True:
        os.write(1, b"x" * 65536)
