# Properties 32 and 44: advice that merges, moves or evicts memory that others may share is ignored.
# expect: status=ok exit=0 stdout=held

import mmap
import os

memory = mmap.mmap(-1, 1 << 22, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for advice in (9, 12, 13, 20, 21, 24, 25, 100, 101, 102, 103):
    try:
        memory.madvise(advice, 0, 1 << 21)
    except OSError:
        continue
    raise SystemExit(f"madvise took {advice}")
for advice in (0, 3, 4, 8, 14, 15):
    memory.madvise(advice)
with open(os.__file__, "rb") as shared:
    shared.read()
    os.posix_fadvise(shared.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # pretends to succeed
print("held")
