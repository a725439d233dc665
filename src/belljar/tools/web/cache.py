"""A cache of answers: agents ask the same questions again and again, often at the same time.

Questions can be whole prompts, chosen by strangers, so only a digest of each is kept: memory is used by answers, plus
a fixed cost for each.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from belljar.aio import cancel_all

_ENTRY_BYTES = 512  # overhead of each answer


class Cache:
    """Keeps the most recently used answers, within a memory limit; failures are not cached."""

    def __init__(self, bytes_max: int, seconds: float) -> None:
        self._bytes_max = bytes_max
        self._seconds = seconds
        self._kept: OrderedDict[bytes, tuple[float, bytes]] = OrderedDict()
        self._bytes = 0
        self._asking: dict[bytes, asyncio.Task[Any]] = {}
        self.hits = 0

    async def get(self, question: tuple[str | int, ...], ask: Callable[[], Awaitable[Any]]) -> Any:
        """Return the answer to `question`; concurrent callers share one call of `ask`."""
        key = hashlib.sha256(repr(question).encode()).digest()
        known = self._kept.get(key)
        if known is not None and time.monotonic() - known[0] < self._seconds:
            self._kept.move_to_end(key)
            self.hits += 1
            return msgspec.json.decode(known[1])
        task = self._asking.get(key)
        if task is None:
            task = self._asking[key] = asyncio.ensure_future(self._ask(key, ask))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(task)  # cancelling one caller must not affect the others

    async def close(self) -> None:
        await cancel_all(self._asking.values())

    async def _ask(self, key: bytes, ask: Callable[[], Awaitable[Any]]) -> Any:
        try:
            answer = await ask()
        finally:
            self._asking.pop(key, None)
        self._keep(key, msgspec.json.encode(answer))
        return answer

    def _keep(self, key: bytes, encoded: bytes) -> None:
        before = self._kept.pop(key, None)
        self._bytes += _ENTRY_BYTES + len(encoded) - (0 if before is None else _ENTRY_BYTES + len(before[1]))
        self._kept[key] = time.monotonic(), encoded
        while self._bytes > self._bytes_max:
            _, (_, dropped) = self._kept.popitem(last=False)
            self._bytes -= _ENTRY_BYTES + len(dropped)
