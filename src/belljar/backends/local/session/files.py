"""The files of a live session: read and written beneath its work directory, following no link."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from belljar.aio import wait_until_done, wait_until_readable
from belljar.backends.local.pool import descriptors
from belljar.backends.local.pool.warden_handle import OutOfDescriptors, StartFailed
from belljar.backends.local.run import artifacts
from belljar.backends.local.session.process import JailedProcess
from belljar.contract.errors import FileNotInSession, JailSetupFailed, SandboxFault, TooLarge, UnsafePath
from belljar.contract.execution import Execution
from belljar.contract.files import check_relative_path
from belljar.contract.sessions import WorkFile
from belljar.inside.warden import file_writer
from belljar.jail import live_files, workdir
from belljar.jail.cgroups import JailCgroup
from belljar.settings import RequestSettings


class SessionFiles(ABC):
    """Reads and writes files while the program runs, which may replace them with anything."""

    def __init__(self, bounds: RequestSettings) -> None:
        self._bounds = bounds
        self._walking = asyncio.Lock()  # the whole tree is walked by one request at a time

    @abstractmethod
    async def _on_work_dir(self, work: Callable[..., Any], *args: Any) -> Any:
        """Call a function of `workdir` or `live_files` on the work directory. Raises SessionEnded."""

    async def write_file(self, path: str, content: bytes) -> None:
        """Create or replace a file in the work directory."""
        path = check_relative_path(path)
        if len(content) > self._bounds.files_bytes:
            raise TooLarge(f"{path}: {len(content):,} bytes are more than the {self._bounds.files_bytes:,} taken here")
        try:
            await self._write(path, content)
        except live_files.NoRoom as error:
            message = f"{path} cannot be written: {error}; remove files, or ask for more disk_mb or memory_mb"
            raise TooLarge(message) from None
        except live_files.NotThere:
            message = f"{path}: a directory of that name, or a link or file above it, is in the way; choose another"
            raise UnsafePath(message, path=path) from None

    async def _write(self, path: str, content: bytes) -> None:
        await self._on_work_dir(live_files.write, path, (content,))

    async def read_file(self, path: str) -> bytes:
        """The content of a regular file in the work directory."""
        path = check_relative_path(path)
        try:
            content: bytes = await self._on_work_dir(live_files.read, path, self._bounds.files_bytes)
        except live_files.NotThere:
            raise FileNotInSession(f"the session has no regular file {path!r}", path=path) from None
        except workdir.TooMuch as error:
            raise TooLarge(f"{error}; make it smaller, or split it") from None
        return content

    async def delete_file(self, path: str) -> None:
        """Remove a file of the work directory."""
        path = check_relative_path(path)
        try:
            await self._on_work_dir(live_files.delete, path)
        except live_files.NotThere:
            raise FileNotInSession(f"the session has no file {path!r}", path=path) from None

    async def list_files(self) -> Sequence[WorkFile]:
        """Regular files of the work directory, at any depth, in order of their paths."""
        try:
            async with self._walking:
                found = await self._on_work_dir(live_files.entries)
                return await asyncio.to_thread(_describe, found)
        except workdir.TooMuch as error:
            raise TooLarge(str(error)) from None

    async def collect(self, cell: Execution) -> artifacts.Collected:
        """The files that the globs of a cell match now."""
        async with self._walking:
            return await artifacts.collect(cell, self._bounds, self._on_work_dir)


def _describe(found: Sequence[live_files.Entry]) -> list[WorkFile]:
    """Not done on the event loop: there can be tens of thousands."""
    return [WorkFile(path=path, size_bytes=size, modified_at=at) for path, size, at in found]


_OVERHEAD_BYTES = 4 << 20  # the memory of the process that writes, and the kernel's page tables
_ANSWER_BYTES = 1024
_SECONDS = 60.0


async def put(process: JailedProcess, cgroup: JailCgroup, directory: int, path: str, content: bytes) -> None:
    """Create or replace a file by a process in the session's cgroup.

    Raises:
        live_files.NoRoom: memory or directory have no room for it. live_files.NotThere: something is in the way.
        JailSetupFailed, SandboxFault: it could not be tried.
    """
    room = cgroup.room_bytes() - _OVERHEAD_BYTES
    if len(content) > room:
        raise live_files.NoRoom(f"the session's memory has room for {max(0, room):,} more bytes")
    answer = await _have_written(process, cgroup, directory, path, content)
    kind, reason = answer[:1], answer[1:].decode("utf-8", "replace")
    if kind == file_writer.NO_ROOM:
        raise live_files.NoRoom(reason)
    if kind == file_writer.IN_THE_WAY:
        raise live_files.NotThere(path)
    if kind != file_writer.DONE:
        raise SandboxFault(f"{path} could not be written: {reason or 'the process that writes it has died'}")


async def _have_written(process: JailedProcess, cgroup: JailCgroup, directory: int, path: str, content: bytes) -> bytes:
    """The report of the process that writes, after its end; b"" if it was killed."""
    order = {"uid": process.family.guest.jail.jail_slot.uid, "path": path, "bytes": len(content)}
    loop = asyncio.get_running_loop()
    try:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            descriptors_sent = [theirs.fileno(), directory, cgroup.memory_join]
            _, writer = await process.family.guests.warden.write_file(order, descriptors_sent)
            theirs.close()
            try:
                async with asyncio.timeout(_SECONDS):
                    with contextlib.suppress(ConnectionError):  # it reports why before it has read all
                        await loop.sock_sendall(ours, content)
                    with contextlib.suppress(ConnectionError):
                        return await loop.sock_recv(ours, _ANSWER_BYTES)
                    return b""
            finally:
                await _end(writer)
    except OutOfDescriptors as error:
        raise descriptors.refusal() from error
    except StartFailed as error:
        raise JailSetupFailed("file", str(error)) from error
    except TimeoutError as error:
        raise SandboxFault(f"{path} was not written in time") from error
    except OSError as error:
        if descriptors.is_one(error):
            raise descriptors.refusal() from error
        raise JailSetupFailed("file", str(error)) from error


async def _end(writer: int) -> None:
    """Kill the process if it still runs, and wait: its memory counts toward the session. Closes the pidfd."""
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(writer, signal.SIGKILL)
    cancelled = await wait_until_done(asyncio.ensure_future(wait_until_readable(writer)))
    os.close(writer)
    if cancelled is not None:
        raise cancelled
