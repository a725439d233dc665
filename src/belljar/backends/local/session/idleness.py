"""Processor time that a session uses while none of its cells runs: threads and children that a cell has left behind.

No cell's clock counts it, so it has an account of its own, for the session's whole life: were it counted from one cell
to the next only, a cell now and then would be all it takes to never be charged.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from belljar.jail.cgroups import JailCgroup

_CORES = os.cpu_count() or 1
_LOOK_SECONDS_MIN, _LOOK_SECONDS_MAX = 1.0, 10.0
_FREE_SECONDS = 0.01  # after each cell: the guest's own way back to waiting is not the program's


class Idleness:
    """The account of one session. Calls `exhausted` once more than `cpu_seconds` were used."""

    def __init__(self, cgroup: JailCgroup | None, cpu_seconds: float, exhausted: Callable[[], None]) -> None:
        self._cgroup = cgroup
        self._cpu_seconds = cpu_seconds
        self._exhausted = exhausted
        self._loop = asyncio.get_running_loop()
        self._used = 0.0  # in all earlier times between cells
        self._since: float | None = None  # what the cgroup had counted when this time between cells began
        self._look: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """No cell runs from now on."""
        if self._cgroup is not None and self._since is None:
            self._since = self._cgroup.cpu_seconds() + _FREE_SECONDS
            if self._look is None:
                self._look_later(self._cpu_seconds - self._used)

    def pause(self) -> None:
        """What is used from now on is counted by the cell that begins."""
        if self._since is not None:
            self._used += self._gap()
            self._since = None
            if self._used > self._cpu_seconds:
                self._exhausted()

    def forgive(self, seconds: float) -> None:
        """Leave out so much of what is used before the next cell: for a fork that the host has asked for."""
        if self._since is not None:
            self._since += seconds

    def close(self) -> None:
        """Count no more."""
        self._since = None
        if self._look is not None:
            self._look.cancel()
            self._look = None

    def _gap(self) -> float:
        assert self._cgroup is not None
        return max(0.0, self._cgroup.cpu_seconds() - (self._since or 0.0))

    def _look_later(self, left: float) -> None:
        """As soon as it can be used up, but neither all the time nor hardly ever."""
        seconds = min(max(left / _CORES, _LOOK_SECONDS_MIN), _LOOK_SECONDS_MAX)
        self._look = self._loop.call_later(seconds, self._check)

    def _check(self) -> None:
        left = self._cpu_seconds - self._used - (0.0 if self._since is None else self._gap())
        if left < 0:
            self._exhausted()
        else:
            self._look_later(left)
