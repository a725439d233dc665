"""asyncio helpers: wait for work even if the caller is cancelled, for descriptors and for processes; log a pipe."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
from collections.abc import Iterable
from typing import Any

_POLL_SECONDS = 0.01
_LOG_BYTES_KEPT = 8192

_log = logging.getLogger("belljar.zygote")


async def wait_until_done(task: asyncio.Future[Any]) -> asyncio.CancelledError | None:
    """Wait for `task` however often the caller is cancelled; return the last cancellation, for the caller to raise.

    An exception of the task is not raised; the caller has to retrieve it.
    """
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    return cancelled


async def cancel_and_wait(task: asyncio.Future[Any]) -> None:
    """Cancel `task` and wait until it has ended, however often the caller is cancelled meanwhile."""
    task.cancel()
    await wait_until_done(task)
    if not task.cancelled():
        task.exception()  # otherwise asyncio logs that it was never retrieved


async def cancel_all(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel `tasks` and wait until all of them have ended, or the caller is cancelled; what they raise is dropped."""
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def wait_until_readable(*files: socket.socket | int) -> None:
    """Wait until one of `files` is readable; a pidfd is readable when its process has ended."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    for file in files:
        loop.add_reader(file, readable.set)
    try:
        await readable.wait()
    finally:
        for file in files:
            loop.remove_reader(file)


async def wait_until_gone(process: subprocess.Popen[bytes]) -> None:
    """Wait until a child process has ended.

    This needs no thread, because `close` methods call it while the interpreter exits and cannot start threads.
    """
    if process.poll() is not None:
        return
    try:
        pidfd = os.pidfd_open(process.pid)
    except OSError:  # no descriptors are left, but closing must still work
        while process.poll() is None:  # noqa: ASYNC110  (there is no event to wait for)
            await asyncio.sleep(_POLL_SECONDS)
        return
    try:
        await wait_until_readable(pidfd)
    finally:
        os.close(pidfd)


async def wait_or_kill(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Wait until a child process has ended and reap it; kill it if it has not ended after `seconds`."""
    try:
        async with asyncio.timeout(seconds):
            await wait_until_gone(process)
    except TimeoutError:
        process.kill()
        await wait_until_gone(process)
    process.wait()


class LogPipe:
    """A pipe for the output of child processes: logs it line by line and keeps the tail for error messages."""

    def __init__(self) -> None:
        self.tail = b""
        self._loop = asyncio.get_running_loop()
        self._read, self.write = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._read, False)
        self._loop.add_reader(self._read, self._on_readable)

    def _on_readable(self) -> None:
        try:
            chunk = os.read(self._read, 65536)
        except BlockingIOError:
            return
        if not chunk:
            self._loop.remove_reader(self._read)
            return
        self.tail = (self.tail + chunk)[-_LOG_BYTES_KEPT:]
        for line in chunk.decode("utf-8", "replace").splitlines():
            _log.warning("%s", line)

    def close(self) -> None:
        self._loop.remove_reader(self._read)
        os.close(self._read)
        os.close(self.write)
