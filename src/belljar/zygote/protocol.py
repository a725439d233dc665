"""The packed numbers that host and zygote exchange for every run; everything rarer travels as JSON."""

from __future__ import annotations

import struct

#: host to zygote, with the guest's channel, stdout and stderr: guest, cell, uid, and what `jail.enter.Place` takes
FORK = struct.Struct("=QIIQQQQ")

#: zygote to host: one of the words below, the guest, its pid or wait status, CPU in microseconds
NEWS = struct.Struct("=BQqQ")
BORN, ENDED = 1, 2

#: host and steward, both ways: bytes of JSON, bytes of payload
FRAME = struct.Struct(">II")
