"""The packed numbers that host and zygote exchange for every run; everything rarer travels as JSON."""

from __future__ import annotations

import struct

#: host to zygote, with the guest's stdout and stderr, and the channel if it is a session's own: guest, jail, uid, bytes
#: of disk (0: the guest takes the jail's own directories and ipc namespace), CPU seconds, processes, address space
FORK = struct.Struct("=QIIQQQQ")

#: zygote to host: a guest has ended; its wait status, CPU in microseconds
ENDED = struct.Struct("=QqQ")

#: in a file that both have open, at the number of the jail: the guest in it, its pid. Written at every fork and read
#: only when a zygote is gone: a message would wake the host once more in every run, for nothing.
BIRTH = struct.Struct("=Qq")

#: host and steward, both ways: bytes of JSON, bytes of payload
FRAME = struct.Struct(">II")
