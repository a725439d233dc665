"""Builds an environment in a thread beside an event loop; cancelling the task stops the build."""

from __future__ import annotations

import asyncio
import threading

from belljar.environments.build import Environment, Progress
from belljar.environments.store import Environments


async def ensure_unless_cancelled(environments: Environments, name: str, progress: Progress) -> Environment:
    """Run `Environments.ensure` in a thread. Cancelling ends the build and waits until nothing is left of it.

    An event loop that closes waits for its threads, so a build that went on would delay the exit by minutes.
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
    """The task that waited for this build was cancelled."""
