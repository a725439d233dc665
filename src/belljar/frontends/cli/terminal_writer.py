"""Our own standard output and error, written byte for byte as the program writes its own.

A reader who is slow, or stopped at a page, blocks whoever writes to him. That must not be the event loop, which keeps
the program's clocks: a thread writes, and the program waits on its own pipe meanwhile. The descriptors are not set to
non-blocking instead, because they are shared with the shell and everyone else at this terminal.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import select
import threading
from collections.abc import Callable
from typing import Any

from belljar.contract.execution import Display, ToolAnswered, ToolCalled

STDOUT, STDERR = 1, 2
_UNWRITTEN_BYTES_MAX = 256 * 1024
_DESCRIPTORS = {"stdout": STDOUT, "stderr": STDERR}


class Outlet:
    """A Watcher that shows what the program writes. Belongs to the running event loop."""

    def __init__(self, on_failure: Callable[[OSError], None]) -> None:
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        self._chunks: queue.SimpleQueue[tuple[int, bytes] | None] = queue.SimpleQueue()
        self._unwritten_bytes = 0
        self._room = asyncio.Event()
        self._room.set()
        self._emptied = self._loop.create_future()
        self.stderr_line_is_open = False  # whether a note of ours would continue a line of the program's
        threading.Thread(target=self._write_all, name="belljar-outlet", daemon=True).start()

    def started(self) -> None:
        """Nothing to show yet."""

    def wrote(self, stream: str, chunk: bytes) -> None:
        """Show some output of the program."""
        self.put(_DESCRIPTORS[stream], chunk)

    def displayed(self, display: Display) -> None:
        """Pictures are saved from the outcome."""

    def called(self, call: ToolCalled) -> None:
        """Calls are in the outcome."""

    def answered(self, answer: ToolAnswered) -> None:
        """So are their answers."""

    @property
    def is_behind(self) -> bool:
        """Whether the reader has fallen behind."""
        return not self._room.is_set()

    async def caught_up(self) -> None:
        """Return once the reader has caught up."""
        await self._room.wait()

    def put(self, descriptor: int, chunk: bytes) -> None:
        """Write `chunk` after everything put before."""
        if descriptor == STDERR:
            self.stderr_line_is_open = not chunk.endswith(b"\n")
        self._unwritten_bytes += len(chunk)
        if self._unwritten_bytes > _UNWRITTEN_BYTES_MAX:
            self._room.clear()
        self._chunks.put((descriptor, chunk))

    async def empty(self) -> None:
        """Return once everything is written. Nothing may be put afterwards."""
        self._chunks.put(None)
        await self._emptied

    def _write_all(self) -> None:
        try:
            for descriptor, chunk in iter(self._chunks.get, None):
                _write(descriptor, chunk)
                self._report(self._written, len(chunk))
        except OSError as error:
            self._report(self._on_failure, error)
        else:
            self._report(self._emptied.set_result, None)

    def _written(self, size: int) -> None:
        self._unwritten_bytes -= size
        if self._unwritten_bytes <= _UNWRITTEN_BYTES_MAX // 2:
            self._room.set()

    def _report(self, callback: Callable[[Any], object], argument: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody wants to know any more
            self._loop.call_soon_threadsafe(callback, argument)


def _write(descriptor: int, chunk: bytes) -> None:
    view = memoryview(chunk)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:  # somebody else has set it so
            select.select([], [descriptor], [])
