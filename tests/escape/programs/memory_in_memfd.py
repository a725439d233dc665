# Property 47: an unnamed file is memory, too.
# expect: status=out_of_memory
# limits: memory_mb=64
# needs: root

import os

descriptor = os.memfd_create("kept")
for _ in range(128):
    os.write(descriptor, b"x" * (1 << 20))
