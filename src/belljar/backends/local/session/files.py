"""The files of a live session, as its caller sees them: beneath the work directory's descriptor, following no link."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from belljar.backends.local.pool import descriptors
from belljar.backends.local.run import artifacts
from belljar.contract.errors import FileNotInSession, TooLarge, UnsafePath
from belljar.contract.execution import Execution
from belljar.contract.files import check_relative_path
from belljar.contract.sessions import WorkFile
from belljar.jail import live_files, workdir
from belljar.settings import RequestSettings

_WALKS = (live_files.entries, workdir.collect)  # work on a whole tree


class SessionFiles(ABC):
    """Reads and writes while the program runs, and may plant what it likes."""

    def __init__(self, bounds: RequestSettings, owner: int | None) -> None:
        self._bounds = bounds
        self._walking = asyncio.Lock()  # one at a time looks through the whole tree
        self._owner = owner  # host uid of the program's files; None: our own

    @abstractmethod
    def _work_dir(self) -> int:
        """The work directory's descriptor, of which a copy is used. Raises SessionEnded."""

    async def write_file(self, path: str, content: bytes) -> None:
        """Make or replace a file in the work directory."""
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

    async def _on_work_dir(self, work: Callable[..., Any], *args: Any) -> Any:
        on_thread = artifacts.on_walking_thread if work in _WALKS else artifacts.on_thread
        with descriptors.named():
            return await on_thread(self._work_dir(), self._owner, work, *args)


def _describe(found: Sequence[live_files.Entry]) -> list[WorkFile]:
    """There can be tens of thousands, so this is not done on the event loop."""
    return [WorkFile(path=path, size_bytes=size, modified_at=at) for path, size, at in found]
