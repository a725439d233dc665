"""A back end without an engine before it, for tests that look at its cells and guests from inside."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from belljar.backends.local import LocalSandbox
from belljar.backends.local.world import World
from belljar.environments import Environments
from belljar.settings import Settings


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
