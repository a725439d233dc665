# Property 53: output of a daemon after the program's end is dropped, and the answer does not wait for it.
# expect: status=ok exit=0
# limits: wall_seconds=30

import os

if os.fork() == 0:
    os.setsid()
    while True:
        os.write(1, b"x" * 65536)
