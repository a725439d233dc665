"""The words by which a branch is born, and who the kernel says has spoken them."""

from __future__ import annotations

import os
import socket

import harness

from belljar import channel
from belljar.backends.local.session import branch

ALLOWED = ()
TOKENS = (channel.build({}, b"passing"), channel.build({}, b"copy"))


async def _talk(data: bytes) -> None:
    count, data = (data[0] % 64, data[1:]) if data else (0, data)
    ours, theirs = channel.pair()
    with ours, theirs:
        ours.setblocking(False)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        try:
            ours.setsockopt(socket.SOL_SOCKET, branch._SO_PASSPIDFD, 1)
        except OSError:
            pass  # a kernel before 6.5 branches nothing
        channel.send_packet(theirs, data[: channel.PACKET_BYTES_MAX], [0] * count)
        word = branch._receive(ours, b"copy")
    if word.pidfd >= 0:
        os.close(word.pidfd)
    assert word.pid == os.getpid()
    assert word.is_due == (data == channel.build({}, b"copy") and not count)


def run(data: bytes) -> None:
    harness.drive(_talk(data))


harness.open_loop()
