"""Frames of a runner, in pieces, each read as its word says."""

from __future__ import annotations

import harness
import msgspec

from belljar.backends.runners import wire
from belljar.contract.errors import BelljarError

ALLOWED = (msgspec.DecodeError, UnicodeError, LookupError, TypeError, ValueError, AttributeError, OverflowError)
TOKENS = (
    wire._HEAD.pack(0, wire.Word.READY, 0),
    wire._HEAD.pack(1, wire.Word.ENDED, 1),
    wire._HEAD.pack(1, wire.Word.FAILED, 1),
    wire.pack({"kind": "SandboxFault", "message": "m", "details": {}, "kept": {"step": "s"}}),
    wire.pack(["logger", "text"]),
)
_READERS = {
    wire.Word.ENDED: wire.read_evidence,
    wire.Word.FACTS: wire.read_facts,
    wire.Word.LOG: wire.read_record,
    wire.Word.DISPLAYED: wire.read_display,
    wire.Word.RUN: wire.read_execution,
}


def _receive(word: int, number: int, process: bytes) -> None:
    if word == wire.Word.FAILED:
        assert isinstance(wire.read_error(process), BelljarError)
    elif word in _READERS:
        _READERS[wire.Word(word)](process)


async def _talk(data: bytes) -> None:
    size, data = (data[0] + 1, data[1:]) if data else (1, data)
    line = wire.Connection(_receive, lambda: None)
    for at in range(0, len(data), size):
        line.data_received(data[at : at + size])


def run(data: bytes) -> None:
    harness.drive(_talk(data))


harness.open_loop()
