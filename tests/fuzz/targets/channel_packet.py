"""Packets of a guest, with unexpected descriptors."""

from __future__ import annotations

import os

from belljar import channel

ALLOWED = (channel.ChannelClosed,)
TOKENS = (b'{"ended":1,"error":null}', b"\0\0\0\0", b"\0\0\0\x02{}", b"NaN", b'"\\ud800"')


def run(data: bytes) -> None:
    count, data = (data[0] % 5, data[1:]) if data else (0, data)
    ours, theirs = channel.pair()
    with ours, theirs:
        channel.send_packet(theirs, data[: channel.PACKET_BYTES_MAX], [theirs.fileno()] * count)
        message, blob, descriptors = channel.receive(ours, descriptors_max=2)
    for descriptor in descriptors:
        os.close(descriptor)
    assert isinstance(message, dict)
    assert len(blob) <= len(data)
    assert len(descriptors) == count <= 2
