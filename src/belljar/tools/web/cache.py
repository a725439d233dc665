"""Answers, remembered for a while: agents ask the same things again and again, and often at the same time."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Any

import msgspec


class Cache:
    """As many answers as fit into some memory, the ones used last. What fails is not remembered."""

    def __init__(self, bytes_max: int, seconds: float) -> None:
        self._bytes_max = bytes_max
        self._seconds = seconds
        self._kept: OrderedDict[Hashable, tuple[float, bytes]] = OrderedDict()
        self._bytes = 0
        self._asking: dict[Hashable, asyncio.Task[Any]] = {}
        self.hits = 0

    async def get(self, key: Hashable, ask: Callable[[], Awaitable[Any]]) -> Any:
        """The answer for `key`; `ask` is awaited once, however many want to know."""
        known = self._kept.get(key)
        if known is not None and time.monotonic() - known[0] < self._seconds:
            self._kept.move_to_end(key)
            self.hits += 1
            return msgspec.json.decode(known[1])
        task = self._asking.get(key)
        if task is None:
            task = self._asking[key] = asyncio.ensure_future(self._ask(key, ask))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(task)  # one who gives up must not take the answer from the others

    async def close(self) -> None:
        """Ask no more."""
        tasks = list(self._asking.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask(self, key: Hashable, ask: Callable[[], Awaitable[Any]]) -> Any:
        try:
            answer = await ask()
        finally:
            self._asking.pop(key, None)
        self._keep(key, msgspec.json.encode(answer))
        return answer

    def _keep(self, key: Hashable, encoded: bytes) -> None:
        before = self._kept.pop(key, None)
        self._bytes += len(encoded) - (0 if before is None else len(before[1]))
        self._kept[key] = time.monotonic(), encoded
        while self._bytes > self._bytes_max:
            _, (_, dropped) = self._kept.popitem(last=False)
            self._bytes -= len(dropped)
