# Property 59: only descriptors 0, 1 and 2 are open.
# expect: status=ok exit=0 stdout=held

import os

found = []
for descriptor in range(3, 70_000):
    try:
        os.fstat(descriptor)
        found.append((descriptor, os.readlink(f"/proc/self/fd/{descriptor}")))
    except OSError:
        pass
assert not found, found
print("held")
