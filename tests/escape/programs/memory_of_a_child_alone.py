# Property 47: if the kernel kills a child for memory, the program is reported as out of memory although its parent goes on.
# expect: status=out_of_memory
# limits: memory_mb=64
# needs: root

import os

child = os.fork()
if child == 0:
    kept = bytearray(b"x") * (256 << 20)
os.waitpid(child, 0)
print("the parent is fine")
