"""Packets on a program's tool socket, with connections of its own."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import harness

from belljar.contract.errors import ToolFailed
from belljar.contract.tools import ToolSpec
from belljar.settings import ToolSettings
from belljar.tools.guest_socket import Bridge
from belljar.tools.schema import find_problem

ALLOWED = ()
TOKENS = (b"\0\0\0\1\0", b"\0\0\0\1\1", b"\0\0\0\1\2", b'{"tool":"echo","arguments":{}}', b'{"text":"a","times":1}')
_SCHEMA = {
    "type": "object",
    "properties": {
        "text": {"type": "string", "maxLength": 5, "enum": ["a", "b"]},
        "times": {"type": "integer", "minimum": 0, "multipleOf": 2},
        "more": {"type": "array", "items": {"$ref": "#"}, "uniqueItems": True, "maxItems": 9},
        "one": {"anyOf": [{"type": "null"}, {"type": "number"}, {"const": "x"}]},
    },
    "required": ["text"],
    "additionalProperties": {"$ref": "#"},
}


class _Host:
    """Checks the arguments, as the broker does, and gives them back."""

    def describe(self, keys: Iterable[str]) -> Sequence[ToolSpec]:
        return [ToolSpec(name=key, description="", input_schema=_SCHEMA) for key in keys]

    async def call(self, key: str, arguments: Mapping[str, Any]) -> Any:
        problem = find_problem(arguments, _SCHEMA)
        if problem is not None:
            raise ToolFailed(problem)
        return arguments


async def _talk(data: bytes) -> None:
    bridge = Bridge(_Host(), ["echo"], ToolSettings(argument_bytes=8192))  # type: ignore[arg-type]
    bridge.begin(None)
    theirs = socket.socket(fileno=bridge.open())
    theirs.setblocking(False)
    try:
        for packet in harness.pieces(data):
            count, packet = (packet[0] % 4, packet[1:]) if packet else (0, packet)
            try:
                socket.send_fds(theirs, [packet], [theirs.fileno(), 0][:count])
            except OSError:
                break
            await harness.turns(2)
        await harness.turns(6)
    finally:
        for call in bridge.end():
            assert call.tool == "echo"
        bridge.close()
        theirs.close()
        await harness.turns(3)


def run(data: bytes) -> None:
    harness.drive(_talk(data))


harness.open_loop()
