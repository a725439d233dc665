"""Writes a program's output to our standard output and error in a separate thread.

Writing blocks while the reader is slow (a pager, a stopped terminal). The event loop must not block, because it
enforces the program's time limits, so a thread writes and the program blocks on its own pipe. The descriptors are not
made non-blocking, because they are shared with the shell and other processes of this terminal.
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


class TerminalWriter:
    """A Watcher that passes the program's output on. Must be created on the running event loop."""

    def __init__(self, on_failure: Callable[[OSError], None]) -> None:
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        self._chunks: queue.SimpleQueue[tuple[int, bytes] | None] = queue.SimpleQueue()
        self._unwritten_bytes = 0
        self._room = asyncio.Event()
        self._room.set()
        self._emptied = self._loop.create_future()
        self.stderr_line_is_open = False  # whether the program's last line on stderr is unfinished
        threading.Thread(target=self._write_all, name="belljar-terminal-writer", daemon=True).start()

    def started(self) -> None:
        pass

    def wrote(self, stream: str, chunk: bytes) -> None:
        self.put(_DESCRIPTORS[stream], chunk)

    def displayed(self, display: Display) -> None:
        """Nothing: displays, tool calls and their answers are taken from the outcome."""

    def called(self, call: ToolCalled) -> None:
        pass

    def answered(self, answer: ToolAnswered) -> None:
        pass

    @property
    def is_behind(self) -> bool:
        return not self._room.is_set()

    async def caught_up(self) -> None:
        """Wait until at most half of the buffer is unwritten."""
        await self._room.wait()

    def put(self, descriptor: int, chunk: bytes) -> None:
        if descriptor == STDERR:
            self.stderr_line_is_open = not chunk.endswith(b"\n")
        self._unwritten_bytes += len(chunk)
        if self._unwritten_bytes > _UNWRITTEN_BYTES_MAX:
            self._room.clear()
        self._chunks.put((descriptor, chunk))

    async def empty(self) -> None:
        """Wait until everything is written. `put` must not be called afterwards."""
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
        with contextlib.suppress(RuntimeError):  # the event loop is closed
            self._loop.call_soon_threadsafe(callback, argument)


def _write(descriptor: int, chunk: bytes) -> None:
    view = memoryview(chunk)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:  # another process made the descriptor non-blocking
            select.select([], [descriptor], [])
