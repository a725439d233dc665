"""What a session writes when none of its cells runs: it belongs to no cell's answer, and is not lost either."""

from __future__ import annotations

import asyncio
import os
from collections import deque

from belljar.backends.local.run.streams import Stream

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
