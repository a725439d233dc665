"""Lines of an MCP client, before the SDK sees them."""

from __future__ import annotations

import asyncio
import json

import harness

from belljar.frontends.mcp.stdio import StdioLines, StdioWriter

ALLOWED = ()
TOKENS = (b'{"jsonrpc":"2.0","id":1,"method":"ping"}', b'"\\ud800"', b"\xff", b"\n", b'"id":"a"')


class _Kept(StdioWriter):
    """Keeps what is written."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    async def write(self, text: str) -> None:
        self.texts.append(text)

    async def flush(self) -> None:
        pass


async def _talk(data: bytes) -> None:
    reader = asyncio.StreamReader(4096)
    reader.feed_data(data)
    reader.feed_eof()
    outlet = _Kept()
    async for line in StdioLines(reader, outlet):
        assert line.decode()
    for text in outlet.texts:
        assert json.loads(text)["error"]["code"] < 0
        assert text.encode().count(b"\n") == 1


def run(data: bytes) -> None:
    harness.drive(_talk(data))


harness.open_loop()
