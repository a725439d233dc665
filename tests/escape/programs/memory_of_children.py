# Property 47: each child uses little memory, but together too much; the kernel kills one, Belljar kills all.
# expect: status=out_of_memory
# limits: memory_mb=96
# needs: root

import os
import signal

ready, told = os.pipe()
for _ in range(12):
    if os.fork() == 0:
        kept = bytearray(b"x") * (16 << 20)
        os.write(told, b"x")
        signal.pause()
for _ in range(12):
    os.read(ready, 1)
signal.pause()
