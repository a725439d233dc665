"""Monitors a program or cell that lasts: reads its output, and enforces its CPU and output limits.

Slow watchers apply back-pressure: output is read no faster than they take it.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any, Protocol

from belljar.backends.local.run.displays import PictureReader
from belljar.backends.local.run.guest import Meter
from belljar.contract.backend import Watcher
from belljar.contract.execution import Limits
from belljar.settings import RequestSettings

_CORES = os.cpu_count() or 1
_CPU_CHECK_SECONDS_MIN = 0.01
_CLOCK_SECONDS = 0.001  # by how much a timer may come early: some loops count whole milliseconds
READ_BYTES = 65536
TAIL_BYTES = 65536  # kept of the end of the dropped output: an interpreter prints the error there


class MonitoredRun:
    """Base class of a running program or cell. Subclasses provide the two streams, `has_ended()` and `stop()`."""

    # Class-level defaults of what few ever change, so that creating one costs less.
    _deadline_passed = _cpu_exhausted = _flooded = False
    _resuming: asyncio.Task[None] | None = None
    _streams: tuple[Stream, ...] = ()
    _pictures: PictureReader | None = None
    _picture_pipe = -1

    def __init__(
        self,
        limits: Limits,
        cgroup: Meter | None,
        watcher: Watcher | None,
        bounds: RequestSettings,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._limits = limits
        self._cgroup = cgroup
        self._watcher = watcher
        self._bounds = bounds
        self._loop = loop
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._watched: set[int] = set()

    def has_ended(self) -> bool:
        """Whether nothing more is to be read."""
        raise NotImplementedError

    def stop(self) -> None:
        """End it: a limit is used up."""
        raise NotImplementedError

    def _attend(self, elapsed_seconds: float) -> None:
        """Read its output as it arrives from now on, and check its CPU time when that may be used up."""
        for stream in self._streams:
            self._watch(stream.descriptor, self._on_output, stream)
        if self._cgroup is not None:
            left = self._limits.cpu_seconds / _CORES - elapsed_seconds
            self._timers["cpu"] = self._loop.call_later(max(0.0, left), self._check_cpu)

    def _stop_attending(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        if self._resuming is not None:
            self._resuming.cancel()
            self._resuming = None
        for descriptor in tuple(self._watched):
            self._unwatch(descriptor)

    def _watch(self, descriptor: int, callback: Any, *args: Any) -> None:
        if descriptor not in self._watched:
            self._watched.add(descriptor)
            self._loop.add_reader(descriptor, callback, *args)

    def _unwatch(self, descriptor: int) -> None:
        if descriptor in self._watched:
            self._watched.discard(descriptor)
            self._loop.remove_reader(descriptor)

    def _on_output(self, stream: Stream) -> None:
        self._pass_on(stream, stream.read())
        if not stream.is_open:
            self._unwatch(stream.descriptor)
        if self._watcher is not None and self._watcher.is_behind and self._resuming is None:
            for each in self._streams:
                self._unwatch(each.descriptor)
            self._resuming = self._loop.create_task(self._resume(self._watcher))

    async def _resume(self, watcher: Watcher) -> None:
        await watcher.caught_up()
        self._resuming = None
        if not self.has_ended():
            for stream in self._streams:
                if stream.is_open:
                    self._watch(stream.descriptor, self._on_output, stream)

    def _pass_on(self, stream: Stream, chunk: bytes | None) -> None:
        if chunk and self._watcher is not None:
            self._watcher.wrote(stream.name, chunk)
        self._check_flood()

    def _on_picture(self, bytes_max: int = READ_BYTES) -> int:
        """Read some of the pictures; return how many bytes. Refused pictures are dropped, but count as output."""
        try:
            chunk = os.read(self._picture_pipe, bytes_max)
        except BlockingIOError:
            return 0
        assert self._pictures is not None
        for picture in self._pictures.feed(chunk):
            if self._watcher is not None:
                self._watcher.displayed(picture)
        if not chunk:
            self._unwatch(self._picture_pipe)
        self._check_flood()
        return len(chunk)

    def _check_flood(self) -> None:
        stdout, stderr = self._streams
        seen_bytes = stdout.seen_bytes + stderr.seen_bytes
        if self._pictures is not None:
            seen_bytes += self._pictures.flood_bytes
        if seen_bytes > self._bounds.flood_bytes and not self._flooded:
            self._flooded = True
            self.stop()

    def _check_cpu(self) -> None:
        assert self._cgroup is not None
        left = self._limits.cpu_seconds - self._cgroup.cpu_seconds()
        if left <= 0:
            self._cpu_exhausted = True
            self.stop()
        else:
            self._timers["cpu"] = self._loop.call_later(max(_CPU_CHECK_SECONDS_MIN, left / _CORES), self._check_cpu)


class Stream:
    """One output pipe: output within the limit is kept, the rest is read and dropped."""

    __slots__ = ("_bytes_max", "descriptor", "is_open", "kept", "name", "seen_bytes", "tail")

    def __init__(self, name: str, descriptor: int, bytes_max: int) -> None:
        self.name = name
        self.descriptor = descriptor
        self.kept: bytes | bytearray = b""
        self.tail = b""
        self.seen_bytes = 0
        self.is_open = True
        self._bytes_max = bytes_max

    @property
    def was_cut(self) -> bool:
        """Whether anything was dropped."""
        return self.seen_bytes > len(self.kept)

    def read(self, bytes_max: int = READ_BYTES) -> bytes | None:
        """The next output within the limit (b"" if all of it was over); None if the pipe is empty now."""
        try:
            chunk = os.read(self.descriptor, bytes_max if bytes_max < READ_BYTES else READ_BYTES)
        except BlockingIOError:
            return None
        if not chunk:
            self.is_open = False
            return None
        return self.take(chunk)

    def take(self, chunk: bytes) -> bytes:
        """Keep what is within the limit; return that."""
        self.seen_bytes += len(chunk)
        if not self.kept and len(chunk) <= self._bytes_max:
            self.kept = chunk  # most programs write no more than this
            return chunk
        fitting = chunk[: max(0, self._bytes_max - len(self.kept))]
        self.kept = self.kept if isinstance(self.kept, bytearray) else bytearray(self.kept)
        self.kept += fitting
        if len(fitting) < len(chunk):
            self.tail = (self.tail + chunk[len(fitting) :])[-TAIL_BYTES:]
        return fitting


class Settling(Protocol):
    """A run that needs monitoring once it has lasted for a while."""

    def settle_in(self) -> None:
        """Start monitoring."""


class SettleTimer:
    """The runs that have just started, with one timer for all of them. Belongs to one event loop.

    Most runs end before they need monitoring. A timer for each would be set and cancelled a thousand times a second,
    and never fire.
    """

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
