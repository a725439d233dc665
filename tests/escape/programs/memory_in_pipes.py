# Property 47: unread bytes in pipes.
# expect: status=out_of_memory
# limits: memory_mb=32 processes=20
# needs: root

import fcntl
import os

while True:
    for _ in range(400):
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        try:
            fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 1 << 20)
        except OSError:
            pass
        try:
            while True:
                os.write(writer, b"x" * 65536)
        except BlockingIOError:
            pass
    if os.fork():
        os.wait()
    else:
        os.closerange(3, 1024)
