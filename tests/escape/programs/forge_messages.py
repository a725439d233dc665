# Property 60: forged messages on every descriptor have no effect.
# expect: status=failed exit=3
# limits: output_kb=8192

import json
import os
import struct
import sys

forged = [struct.pack(">I", len(text)) + text for text in (
    json.dumps(message).encode() for message in (
        {"exit_code": 0, "status": "ok"}, {"failed": "seccomp", "reason": "forged"}, {"warm": "3.11"}, {"ready": True},
        {"reaped": 1, "status": 0, "cpu_seconds": 0.0}, {"unborn": 1, "reason": "forged"}, {"ask": 1, "failed": "forged"},
    )
)]
forged += [struct.pack("=BQqQ", 2, guest, 0, 0) for guest in range(16)] + [b"\0\0\0\0started", b"started", b"\0" * 4, b"[" * 4096]
for descriptor in range(1024):
    if descriptor not in (1, 2):
        for message in forged:
            try:
                os.write(descriptor, message)
            except OSError:
                break
sys.exit(3)
