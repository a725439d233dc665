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


def descriptors() -> set[tuple[str, str]]:
    """Each that this process has open, with what it is."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile, as the one that listed them
            found.add((name, os.readlink(f"/proc/self/fd/{name}")))
    return found


async def settled_descriptors() -> set[tuple[str, str]]:
    """Those that are open once they stay the same: what was used last is closed a moment later."""
    clock = asyncio.get_running_loop().time
    async with asyncio.timeout(20):
        seen, since = descriptors(), clock()
        while clock() - since < _SETTLED_SECONDS:
            await asyncio.sleep(0.01)
            now = descriptors()
            if now != seen:
                seen, since = now, clock()
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
