"""What a session writes when none of its cells runs: it belongs to no cell's answer, and is not lost either."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable

from belljar.backends.local.run.output import Stream
from belljar.jail.cgroups import JailCgroup

_LINGERING_MAX = 16  # pipes of past cells that somebody still holds


class Background:
    """What is written when no cell runs, or by those whom an earlier cell has left behind.

    Kept up to a bound, past which nobody reads: whoever writes then waits. Shown with the next cell.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._loop = asyncio.get_running_loop()
        self._own: list[Stream] = []  # the guest's first pipes, which stay
        self._lingering: deque[Stream] = deque()
        self._kept = bytearray()  # joined: a program may write single bytes, and each would be an object
        self._is_reading = False
        self._is_closed = False

    def open(self, stdout: int, stderr: int) -> None:
        """Begin to listen; whoever made the two pipes closes them."""
        self._own = [Stream("stdout", stdout, 0), Stream("stderr", stderr, 0)]
        self.resume()

    def adopt(self, stream: Stream) -> None:
        """Listen to, and own, a pipe whose cell has ended; one that comes after the end is closed at once."""
        if not stream.is_open or self._is_closed:
            os.close(stream.descriptor)
            return
        self._lingering.append(stream)
        if self._is_reading:
            self._loop.add_reader(stream.descriptor, self._on_readable, stream)
        if len(self._lingering) > _LINGERING_MAX:
            self._let_go(self._lingering[0])

    def take(self) -> bytes:
        """All there is, marked; from now on it is forgotten."""
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
        """Listen again, if there is room."""
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
        """Stop listening, for good; the guest's own pipes are closed by whoever made them."""
        self._is_closed = True
        self._pause()
        for stream in self._own:
            self._loop.remove_reader(stream.descriptor)
        self._own = []
        while self._lingering:
            self._let_go(self._lingering[0])


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
