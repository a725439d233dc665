"""How much may run in the background: who is answered at once has no connection that would bound it."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Coroutine, Iterator
from typing import Any

from belljar.contract.errors import QueueFull
from belljar.settings import Settings

_CALLERS_SHARE = 4  # one caller may have a quarter, so that he does not keep the others out


class Backlog:
    """Runs that nobody waits for: as many as may run or be queued, as large as the bodies of all requests may be."""

    def __init__(self) -> None:
        self._runs: Counter[str] = Counter()  # by caller
        self._bytes: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()

    @contextlib.contextmanager
    def room(self, settings: Settings, caller: str, size: int) -> Iterator[None]:
        """Keep room for one run that was asked for with `size` bytes.

        Raises:
            QueueFull: there is none.
        """
        self._check(settings, caller, size)
        self._runs[caller] += 1
        self._bytes[caller] += size
        try:
            yield
        finally:
            self._bytes[caller] -= size
            self._runs[caller] -= 1
            if not self._runs[caller]:
                del self._runs[caller], self._bytes[caller]

    def start(self, work: Coroutine[Any, Any, None], held: contextlib.ExitStack) -> None:
        """Begin a run; what is `held` for it is given back at its end."""
        task = asyncio.create_task(work)
        self._tasks.add(task)

        def end(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            held.close()

        task.add_done_callback(end)

    def _check(self, settings: Settings, caller: str, size: int) -> None:
        most_runs, most_bytes = settings.pool.max_running + settings.pool.max_queued, settings.server.bodies_bytes
        own_runs, own_bytes = max(1, most_runs // _CALLERS_SHARE), max(most_bytes // _CALLERS_SHARE, size)
        if self._runs[caller] >= own_runs or self._bytes[caller] + size > own_bytes:
            raise _full(f"{self._runs[caller]} of your runs are")
        if self._runs.total() >= most_runs or self._bytes.total() + size > most_bytes:
            raise _full(f"{self._runs.total()} runs are")


def _full(who: str) -> QueueFull:
    return QueueFull(f"{who} under way in the background, which is all there is room for; wait for one to finish")
