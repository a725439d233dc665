# Property 60: the host accepts anything on the display pipe, trusts none of it, and nothing else depends on it.
# expect: status=failed exit=4
# needs: root

import json
import os
import struct
import sys

import numpy


def frame(message, blob=b""):
    text = json.dumps(message).encode()
    return struct.pack(">I", len(text)) + text + blob


forged = [frame(message) for message in (
    {"failed": "seccomp", "reason": "forged"}, {"mime": "image/png", "bytes": -1}, {"mime": "image/png", "bytes": True},
    {"mime": "../../etc", "bytes": 1}, {"mime": "image/png", "bytes": 10**30}, {"mime": 7}, {"mime": "image/png", "bytes": 1.5},
    {"mime": "image/png\nx: y", "bytes": 5}, {"bytes": 5}, {"exit_code": 0},
)]
forged += [b"", b"\0", b"\0\0\0\0started", struct.pack(">I", 2**31) + b"x", struct.pack(">I", 60_000) + b"[" * 60_000,
           frame({"mime": "image/png", "bytes": 9}, b"too much for one"), struct.pack(">I", 3) + b"\xff\xfe\xfd", b"\0\0\0\5[1,2]"]
for descriptor in range(3, 1024):
    os.set_blocking(descriptor, False) if os.path.exists(f"/proc/self/fd/{descriptor}") else None
    for _ in range(20):
        for message in forged:
            try:
                os.write(descriptor, message)
            except OSError:
                break
sys.exit(4)
