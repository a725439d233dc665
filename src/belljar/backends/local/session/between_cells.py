"""What a session writes, and the CPU time it uses, while none of its cells runs."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable

from belljar.backends.local.run.output import Stream
from belljar.jail.cgroups import JailCgroup

_LINGERING_MAX = 16  # pipes of past cells that some process still holds


class Background:
    """Output that is written while no cell runs, or by processes that an earlier cell has left behind.

    Kept up to a bound, past which it is not read: the writer blocks. Shown with the next cell.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._loop = asyncio.get_running_loop()
        self._own: list[Stream] = []  # the guest's first pipes, which stay
        self._lingering: deque[Stream] = deque()
        self._kept = bytearray()  # one buffer: a program may write single bytes, and each would be an object
        self._is_reading = False
        self._is_closed = False

    def open(self, stdout: int, stderr: int) -> None:
        """Begin to read the guest's own pipes; the caller closes them."""
        self._own = [Stream("stdout", stdout, 0), Stream("stderr", stderr, 0)]
        self.resume()

    def adopt(self, stream: Stream) -> None:
        """Own a pipe whose cell has ended, and read on from it; after `close` it is closed at once."""
        if not stream.is_open or self._is_closed:
            os.close(stream.descriptor)
            return
        self._lingering.append(stream)
        if self._is_reading:
            self._loop.add_reader(stream.descriptor, self._on_readable, stream)
        if len(self._lingering) > _LINGERING_MAX:
            self._let_go(self._lingering[0])

    def take(self) -> bytes:
        """Return what was written since the last call, marked as such."""
        for stream in (*self._own, *self._lingering):
            if stream.is_open:
                self._on_readable(stream)
        if not self._kept:
            return b""
        kept, self._kept = self._kept, bytearray()
        self.resume()
        end = b"" if kept.endswith(b"\n") else b"\n"
        return b"".join((b"[written between cells]\n", kept, end, b"[end of what was written between cells]\n"))

    def resume(self) -> None:
        """Read again, if there is room."""
        if not self._is_reading and len(self._kept) < self._bytes_max:
            self._is_reading = True
            for stream in (*self._own, *self._lingering):
                if stream.is_open:
                    self._loop.add_reader(stream.descriptor, self._on_readable, stream)

    def _pause(self) -> None:
        if self._is_reading:
            self._is_reading = False
            for stream in (*self._own, *self._lingering):
                self._loop.remove_reader(stream.descriptor)

    def _on_readable(self, stream: Stream) -> None:
        try:
            chunk = os.read(stream.descriptor, 65536)
        except BlockingIOError:
            return
        if not chunk:
            stream.is_open = False
            self._loop.remove_reader(stream.descriptor)
            if stream in self._lingering:
                self._let_go(stream)
            return
        self._kept += chunk
        if len(self._kept) >= self._bytes_max:
            self._pause()

    def _let_go(self, stream: Stream) -> None:
        self._lingering.remove(stream)
        self._loop.remove_reader(stream.descriptor)
        os.close(stream.descriptor)

    def close(self) -> None:
        """Stop reading for good; the guest's own pipes are left open."""
        self._is_closed = True
        self._pause()
        for stream in self._own:
            self._loop.remove_reader(stream.descriptor)
        self._own = []
        while self._lingering:
            self._let_go(self._lingering[0])


_CORES = os.cpu_count() or 1
_CHECK_SECONDS_MIN, _CHECK_SECONDS_MAX = 1.0, 10.0
_FREE_SECONDS = 0.01  # after each cell: what the guest itself needs until it waits again


class Idleness:
    """The CPU time that one session uses between cells. Calls `on_exhausted` once it is more than `cpu_seconds`."""

    def __init__(self, cgroup: JailCgroup | None, cpu_seconds: float, on_exhausted: Callable[[], None]) -> None:
        self._cgroup = cgroup
        self._cpu_seconds = cpu_seconds
        self._on_exhausted = on_exhausted
        self._loop = asyncio.get_running_loop()
        self._used = 0.0  # in all earlier gaps between cells
        self._since: float | None = None  # what the cgroup had counted when this gap began
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Begin to count: no cell runs from now on."""
        if self._cgroup is not None and self._since is None:
            self._since = self._cgroup.cpu_seconds() + _FREE_SECONDS
            if self._timer is None:
                self._check_later(self._cpu_seconds - self._used)

    def pause(self) -> None:
        """Stop counting: what is used from now on counts toward the cell that begins."""
        if self._since is not None:
            self._used += self._gap()
            self._since = None
            if self._used > self._cpu_seconds:
                self._on_exhausted()

    def forgive(self, seconds: float) -> None:
        """Leave out this much of what is used before the next cell: for a fork that the host has ordered."""
        if self._since is not None:
            self._since += seconds

    def close(self) -> None:
        self._since = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _gap(self) -> float:
        assert self._cgroup is not None
        return max(0.0, self._cgroup.cpu_seconds() - (self._since or 0.0))

    def _check_later(self, left: float) -> None:
        """Check as soon as the rest can be used up, within bounds."""
        seconds = min(max(left / _CORES, _CHECK_SECONDS_MIN), _CHECK_SECONDS_MAX)
        self._timer = self._loop.call_later(seconds, self._check)

    def _check(self) -> None:
        left = self._cpu_seconds - self._used - (0.0 if self._since is None else self._gap())
        if left < 0:
            self._on_exhausted()
        else:
            self._check_later(left)
