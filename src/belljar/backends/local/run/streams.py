"""One output pipe of a guest, as far as its limit goes."""

from __future__ import annotations

import os

READ_BYTES = 65536
TAIL_BYTES = 65536  # what is kept of the end of what was dropped: there a program says what ended it


class Stream:
    """One output pipe: what is within the limit is kept, the rest is drained and dropped."""

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
        """What there is, within the limit (b"" when all of it was over); None when nothing is left for now."""
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
            self.kept = chunk  # as most output is: all there will be
            return chunk
        fitting = chunk[: max(0, self._bytes_max - len(self.kept))]
        self.kept = self.kept if isinstance(self.kept, bytearray) else bytearray(self.kept)
        self.kept += fitting
        if len(fitting) < len(chunk):
            self.tail = (self.tail + chunk[len(fitting) :])[-TAIL_BYTES:]
        return fitting
