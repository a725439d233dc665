"""The warm worlds of a sandbox, by the name of their environment: each opened once, however many ask for it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from belljar.backends.local.pool.pool import World

_log = logging.getLogger("belljar.local")


class Worlds:
    """What is open, what is being opened, and what waits for its last program to be closed."""

    def __init__(self, make: Callable[[str], Awaitable[World]]) -> None:
        """`make` returns an open one; whoever does not get that far closes what he has."""
        self._make = make
        self.current: dict[str, World] = {}  # some may be lost: `enter` replaces them
        self.replaced = 0
        self._left: list[World] = []  # closed when nothing runs in them any more
        self._opening: dict[str, asyncio.Task[World]] = {}
        self._closing: set[asyncio.Task[None]] = set()

    async def enter(self, name: str) -> World:
        """The world of that name, with its programs or new."""
        world = self.current.get(name)
        if world is not None and not world.is_lost:
            return world
        task = self._opening.get(name)
        if task is None:
            task = self._opening[name] = asyncio.get_running_loop().create_task(self._open(name))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(task)

    async def _open(self, name: str) -> World:
        try:
            lost = self.current.pop(name, None)
            if lost is not None:
                self.replaced += 1
                await lost.close()
            world = self.current[name] = await self._make(name)
            world.refill("bare")
            return world
        finally:
            self._opening.pop(name, None)

    def leave(self, world: World) -> None:
        """Nobody comes to it any more: it is closed in the background, once nothing runs in it."""
        for name in [name for name, each in self.current.items() if each is world]:
            del self.current[name]
        self._left.append(world)

    async def end(self, world: World) -> None:
        """Close one now, whatever runs in it."""
        self.leave(world)
        await asyncio.shield(self._close(world))

    def let_go_of_unused(self) -> None:
        """Now and then."""
        for world in self.current.values():
            world.let_go_of_unused()
        for world in [each for each in self._left if each.is_idle or each.is_lost]:
            self._close(world)

    def _close(self, world: World) -> asyncio.Task[None]:
        self._left.remove(world)
        task = asyncio.get_running_loop().create_task(world.close())
        self._closing.add(task)
        task.add_done_callback(self._closed)
        return task

    def _closed(self, task: asyncio.Task[None]) -> None:
        self._closing.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            _log.error("a world could not be closed: %s", error, exc_info=error)

    @property
    def alive(self) -> int:
        """How many there are, with those that nobody comes to any more."""
        return sum(not world.is_lost for world in (*self.current.values(), *self._left))

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
        for world in list(self._left):
            self._close(world)
        while self._closing:
            await asyncio.wait(self._closing)
