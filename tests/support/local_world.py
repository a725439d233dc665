"""A back end without an engine before it, for tests that look at its cells and guests from inside."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator

from belljar.backends.local import LocalSandbox
from belljar.backends.local.world import World
from belljar.environments import Environments
from belljar.settings import Settings

_SETTLED_SECONDS = 0.5


async def settled_descriptors() -> int:
    """How many this process has open once their number stays the same: what was used last is closed a moment later."""
    async with asyncio.timeout(20):
        seen, since = -1, 0.0
        while seen < 0 or asyncio.get_running_loop().time() - since < _SETTLED_SECONDS:
            count = len(os.listdir("/proc/self/fd"))
            if count != seen:
                seen, since = count, asyncio.get_running_loop().time()
            await asyncio.sleep(0.01)
    return seen


@contextlib.asynccontextmanager
async def opened(settings: Settings, trouble: list[object] | None = None) -> AsyncIterator[tuple[LocalSandbox, World]]:
    """It and the world of its default environment; exceptions that nobody waits for are added to `trouble`."""
    if trouble is not None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: trouble.append(context))
    sandbox = LocalSandbox(settings, Environments(settings.state_dir, settings.environments), print)
    await sandbox.open()
    try:
        yield sandbox, await sandbox._worlds.enter("default")
    finally:
        await sandbox.close()
