"""Packed messages that host and zygote exchange for every run; rarer messages are JSON."""

from __future__ import annotations

import struct

#: Host to zygote: guest, jail, uid, bytes of disk (0: the guest uses the jail's own directories and ipc namespace), CPU
#: seconds, processes, bytes of address space. The guest's stdout and stderr come with it, and a session's channel.
FORK = struct.Struct("=QIIQQQQ")

#: Zygote to host when a guest has ended: guest, wait status, CPU time in microseconds.
ENDED = struct.Struct("=QqQ")

#: A record in a file that both have open, at the index of the jail: guest, pid. The zygote writes it at every fork, and
#: the host reads it only if the zygote dies: a message would wake the host once more in every run.
BIRTH = struct.Struct("=Qq")

#: Header of each message between host and gVisor agent, both ways: bytes of JSON, bytes of payload.
FRAME = struct.Struct(">II")
