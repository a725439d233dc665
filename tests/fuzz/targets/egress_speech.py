"""What a program says to its proxy: HTTP and SOCKS 5, in pieces."""

from __future__ import annotations

import harness

from belljar.egress import protocols
from belljar.egress.rules import Refused

ALLOWED = (Refused, EOFError)
TOKENS = (
    b"CONNECT ",
    b"GET http://a.test/ HTTP/1.1\r\n",
    b"Connection: a,b\r\n",
    b"\r\n\r\n",
    b"\x05\x01\x00",
    b"\x05\x01\x00\x03",
    b"[::1]:80",
)


async def _talk(data: bytes) -> None:
    size, data = (data[0] + 1, data[1:]) if data else (1, data)
    unread = bytearray(data)

    async def receive(count: int) -> bytes:
        taken = bytes(unread[: min(count, size * 64)])
        del unread[: len(taken)]
        return taken

    async def send(said: bytes) -> None:
        assert said

    asked = await protocols.receive_request(receive, send)
    assert 0 <= asked.port < 65536
    assert asked.host.isascii()
    assert not set(asked.host) & set("\r\n \0/@")
    if not asked.is_tunnel:
        head = asked.opening.partition(b"\r\n\r\n")[0]
        names = [line.partition(b":")[0].lower() for line in head.split(b"\r\n")[1:]]
        assert names.count(b"host") == 1
        assert names.count(b"connection") == 1
        assert not any(name.startswith(b"proxy-") for name in names)


def run(data: bytes) -> None:
    harness.drive(_talk(data))


harness.open_loop()
