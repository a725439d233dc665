# Property 47: shared memory that is no longer mapped.
# expect: status=out_of_memory
# limits: memory_mb=64
# needs: root

import mmap

kept = [mmap.mmap(-1, 1 << 20, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS) for _ in range(256)]
for page in kept:
    page.write(b"x" * (1 << 20))
