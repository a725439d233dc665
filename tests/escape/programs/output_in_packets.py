# Standard output in packet mode passes one write at a time to its reader; none is lost.
# expect: status=ok exit=0 stdout=held

import fcntl
import os

fcntl.fcntl(1, fcntl.F_SETFL, fcntl.fcntl(1, fcntl.F_GETFL) | os.O_DIRECT)
for piece in (b"h", b"e", b"l", b"d\n"):
    os.write(1, piece)
