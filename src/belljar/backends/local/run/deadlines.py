"""Deadlines of runs: one timer for all that have just started, and the grace period of an interrupted cell.

Most runs end before they need monitoring. A timer for each would be set and cancelled a thousand times a second, and
never fire.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

_CLOCK_SECONDS = 0.001  # by how much a timer may come early: some loops count whole milliseconds


class Settling(Protocol):
    """A run that needs monitoring once it has lasted for a while."""

    def settle_in(self) -> None:
        """Start monitoring."""


class SettleTimer:
    """The runs that have just started, with one timer for all of them. Belongs to one event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._until: dict[Settling, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0  # never later than the first of `_until`

    def wait_with(self, run: Settling, seconds: float) -> None:
        """Call `run.settle_in()` after this long, unless `forget` comes first."""
        at = self._until[run] = time.monotonic() + seconds
        if self._timer is None or at < self._timer_at:
            self._set_timer(at, seconds)

    def forget(self, run: Settling) -> None:
        self._until.pop(run, None)

    def close(self) -> None:
        """Forget all of them."""
        self._until.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set_timer(self, at: float, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._loop.call_later(seconds, self._look)

    def _look(self) -> None:
        self._timer = None
        now = time.monotonic()
        for run in [run for run, at in self._until.items() if at <= now + _CLOCK_SECONDS]:
            del self._until[run]
            run.settle_in()
        if self._until:
            first = min(self._until.values())
            self._set_timer(first, first - now)


GRACE_SECONDS = 5.0
WALL_SECONDS_MAX = 30.0
_LOOK_AGAIN_SECONDS_MIN = 0.05


class InterruptGrace:
    """How long to wait for an interrupted cell, excluding time it spent waiting for a CPU. Begins when created."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._begun_at = time.monotonic()
        self._stood_before = {pid: stood_in_line_seconds(pid) for pid in pids}

    def left_seconds(self) -> float:
        """How long to wait before the next check; 0: the grace period is over."""
        elapsed = time.monotonic() - self._begun_at
        stood = max((stood_in_line_seconds(pid) - before for pid, before in self._stood_before.items()), default=0.0)
        left = min(GRACE_SECONDS - elapsed + max(0.0, stood), WALL_SECONDS_MAX - elapsed)
        return max(_LOOK_AGAIN_SECONDS_MIN, left) if left > 0 else 0.0


def stood_in_line_seconds(pid: int) -> float:
    """How long the first thread of a process has waited for a CPU; 0 if that is unknown."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0
