"""Frames of a runner, in pieces, each read as its kind says."""

from __future__ import annotations

import harness
import msgspec

from belljar.backends.runners import wire
from belljar.contract.errors import BelljarError

ALLOWED = (msgspec.DecodeError, UnicodeError, LookupError, TypeError, ValueError, AttributeError, OverflowError)
TOKENS = (
    wire._HEAD.pack(0, wire.FrameType.READY, 0),
    wire._HEAD.pack(1, wire.FrameType.ENDED, 1),
    wire._HEAD.pack(1, wire.FrameType.FAILED, 1),
    wire.pack({"kind": "SandboxFault", "message": "m", "details": {}, "kept": {"step": "s"}}),
    wire.pack(["logger", "text"]),
)
_READERS = {
    wire.FrameType.ENDED: wire.read_evidence,
    wire.FrameType.FACTS: wire.read_facts,
    wire.FrameType.LOG: wire.read_record,
    wire.FrameType.DISPLAYED: wire.read_display,
    wire.FrameType.RUN: wire.read_execution,
}


def _receive(kind: int, number: int, payload: bytes) -> None:
    if kind == wire.FrameType.FAILED:
        assert isinstance(wire.read_error(payload), BelljarError)
    elif kind in _READERS:
        _READERS[wire.FrameType(kind)](payload)


async def _talk(data: bytes) -> None:
    size, data = (data[0] + 1, data[1:]) if data else (1, data)
    connection = wire.Connection(_receive, lambda: None)
    for at in range(0, len(data), size):
        connection.data_received(data[at : at + size])


def run(data: bytes) -> None:
    harness.drive(_talk(data))


harness.open_loop()
