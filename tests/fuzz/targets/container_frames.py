"""Frames of a container whose kernel is not ours: about a program that runs, and about a session."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import harness

from belljar.backends.gvisor.pool import NONSENSE, GvisorPool, _PendingRun
from belljar.backends.gvisor.relay import StdioLines
from belljar.backends.gvisor.session import RelayedProcess
from belljar.contract.execution import Execution, Limits
from belljar.settings import RequestSettings

ALLOWED = ()
_WORDS = (
    *("ready", "run", "line", "closed", "sent", "kind", "socket", "stream", "stdout", "bytes", "pictures", "started"),
    *("ended", "status", "paths", "files", "asked", "found", "failed", "reason", "lost", "flooded"),
)
TOKENS = tuple(f'"{word}":'.encode() for word in _WORDS) + (b'{"run":1,"line":1}', b'{"run":2,"line":1}')
_BOUNDS = RequestSettings()


async def _talk(data: bytes) -> None:
    pool = GvisorPool(None, "image", "name", _BOUNDS, Limits())  # type: ignore[arg-type]
    sent: list[dict[str, Any]] = []
    pool._send = lambda message, blob=b"": sent.append(message)  # type: ignore[method-assign]
    execution = Execution(code="", limits=Limits())
    read, write = os.pipe()
    os.set_blocking(read, False)
    asked = _PendingRun(1, execution, _BOUNDS, None, StdioLines(1, pool._send))
    asked.relay.lend([write])
    os.close(write)
    pool._enrol(lambda message, blob: asked.receive(message, blob))
    process = RelayedProcess(2, pool._send, pool, lambda: None)
    pool._enrol(process.receive)
    inbox = bytearray()
    try:
        for chunk in harness.pieces(data):
            inbox += chunk
            pool._take_frames(inbox)
            await harness.turns(1)
    except NONSENSE:  # as it says that reads them: the container is then lost
        pass
    finally:
        asked.relay.close()
        await process.release()
        os.close(read)
        pool._greeted.cancel()
        await asyncio.sleep(0)


def run(data: bytes) -> None:
    harness.drive(_talk(data))


harness.open_loop()
