"""Building an environment beside an event loop, which goes on meanwhile and may give the build up."""

from __future__ import annotations

import asyncio
import threading

from belljar.environments.build import Environment, Progress
from belljar.environments.store import Environments


async def ensure_unless_cancelled(environments: Environments, name: str, progress: Progress) -> Environment:
    """As `Environments.ensure`, in a thread. Cancelling this ends the build, and waits until nothing is left of it.

    A loop that ends waits for its threads, so one that went on with a build would keep the process for minutes.
    """
    is_unwanted = threading.Event()

    def check() -> None:
        if is_unwanted.is_set():
            raise _Unwanted

    building = asyncio.create_task(asyncio.to_thread(environments.ensure, name, progress, check))
    try:
        return await asyncio.shield(building)
    finally:
        is_unwanted.set()
        await asyncio.gather(building, return_exceptions=True)


class _Unwanted(Exception):
    """Nobody waits for this build any more."""
