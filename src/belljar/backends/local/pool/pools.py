"""The warm worlds of a sandbox, by the name of their environment: each opened once, however many ask for it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from belljar.backends.local.pool.pool import LocalPool
from belljar.backends.local.pool.zygotes import BARE

_log = logging.getLogger("belljar.local")


class GuestPools:
    """What is open, what is being opened, and what waits for its last program to be closed."""

    def __init__(self, make: Callable[[str], Awaitable[LocalPool]]) -> None:
        """`make` returns an open one; whoever does not get that far closes what he has."""
        self._make = make
        self.current: dict[str, LocalPool] = {}  # some may be lost: `enter` replaces them
        self.replaced = 0
        self._left: list[LocalPool] = []  # closed when nothing runs in them any more
        self._opening: dict[str, asyncio.Task[LocalPool]] = {}
        self._closing: set[asyncio.Task[None]] = set()

    async def enter(self, name: str) -> LocalPool:
        """The pool of that name, with its programs or new."""
        pool = self.current.get(name)
        if pool is not None and not pool.is_lost:
            return pool
        task = self._opening.get(name)
        if task is None:
            task = self._opening[name] = asyncio.get_running_loop().create_task(self._open(name))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(task)

    async def _open(self, name: str) -> LocalPool:
        try:
            lost = self.current.pop(name, None)
            if lost is not None:
                self.replaced += 1
                await lost.close()
            pool = self.current[name] = await self._make(name)
            pool.refill(BARE)
            return pool
        finally:
            self._opening.pop(name, None)

    def leave(self, pool: LocalPool) -> None:
        """Nobody comes to it any more: it is closed in the background, once nothing runs in it."""
        for name in [name for name, each in self.current.items() if each is pool]:
            del self.current[name]
        self._left.append(pool)

    async def end(self, pool: LocalPool) -> None:
        """Close one now, whatever runs in it."""
        self.leave(pool)
        await asyncio.shield(self._close(pool))

    def let_go_of_unused(self) -> None:
        """Now and then."""
        for pool in self.current.values():
            pool.let_go_of_unused()
        for pool in [each for each in self._left if each.is_idle or each.is_lost]:
            self._close(pool)

    def _close(self, pool: LocalPool) -> asyncio.Task[None]:
        self._left.remove(pool)
        task = asyncio.get_running_loop().create_task(pool.close())
        self._closing.add(task)
        task.add_done_callback(self._closed)
        return task

    def _closed(self, task: asyncio.Task[None]) -> None:
        self._closing.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            _log.error("a pool could not be closed: %s", error, exc_info=error)

    @property
    def alive(self) -> int:
        """How many there are, with those that nobody comes to any more."""
        return sum(not pool.is_lost for pool in (*self.current.values(), *self._left))

    async def stop_opening(self) -> None:
        """Give up what is not open yet."""
        for task in self._opening.values():
            task.cancel()
        if self._opening:
            await asyncio.wait(list(self._opening.values()))

    async def close(self) -> None:
        """End them all, whatever runs there."""
        await self.stop_opening()
        self._left += self.current.values()
        self.current.clear()
        for pool in list(self._left):
            self._close(pool)
        while self._closing:
            await asyncio.wait(self._closing)
