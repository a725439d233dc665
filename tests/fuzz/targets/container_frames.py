"""Frames of a container whose kernel is not ours: about a program that runs, and about a session."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import harness

from belljar.backends.gvisor.guest import RelayedProcess, RelayedRun
from belljar.backends.gvisor.pool import GvisorPool
from belljar.backends.local.features.feature import Features
from belljar.backends.local.pool.zygotes import BARE, SESSION
from belljar.backends.local.session.session import LocalSession
from belljar.contract.errors import BelljarError
from belljar.contract.execution import Execution, Limits
from belljar.settings import Settings

ALLOWED = ()
_WORDS = (
    *("ready", "run", "descriptor", "closed", "sent", "kind", "socket", "ended", "status", "cpu_microseconds"),
    *("peak_bytes", "out_of_memory", "answers", "found", "paths", "sizes", "trouble", "error", "reason"),
)
TOKENS = tuple(f'"{word}":'.encode() for word in _WORDS) + (b'{"run":1,"descriptor":1}', b'{"run":2,"descriptor":1}')
_SETTINGS = Settings()


async def _talk(data: bytes) -> None:
    pool = GvisorPool(
        None,  # type: ignore[arg-type]
        "image",
        "name",
        {},
        _SETTINGS,
        Features(_SETTINGS.tools, None),
        is_disposable=False,
    )
    sent: list[dict[str, Any]] = []
    pool._send = lambda message, blob=b"": sent.append(message)  # type: ignore[method-assign]
    read, write = os.pipe()
    execution = Execution(code="", limits=Limits(), artifacts=("*",))
    guest = pool._open_guest(BARE, execution.limits, [])
    running = asyncio.create_task(RelayedRun(guest, execution, None, _SETTINGS.request, pool, False).play())
    await harness.turns(1)
    guest.relay.describe([write])
    os.close(write)
    session_guest = pool._open_guest(SESSION, Limits(), [])
    session = LocalSession(RelayedProcess(pool, session_guest), Limits(), _SETTINGS.request)
    inbox = bytearray()
    try:
        for chunk in harness.pieces(data):
            inbox += chunk
            pool._take_frames(inbox)
            await harness.turns(1)
    except (ValueError, RecursionError):  # the container is then lost
        pass
    finally:
        pool._lose("the test is over")
        (error,) = await asyncio.gather(running, return_exceptions=True)
        pool.release(guest)
        await session.close()
        await pool.close()
        os.close(read)
    if isinstance(error, Exception) and not isinstance(error, BelljarError):
        raise error


def run(data: bytes) -> None:
    harness.drive(_talk(data))


harness.open_loop()
