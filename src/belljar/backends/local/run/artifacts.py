"""Collects the files that a program leaves in its work directory.

All file work is done in threads: a program can create a tree that takes long to read.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeAlias

from belljar.contract.artifacts import Matcher, TooManySteps
from belljar.contract.execution import Execution
from belljar.contract.files import File
from belljar.jail import file_access, workdir
from belljar.settings import RequestSettings

_files = ThreadPoolExecutor(8, thread_name_prefix="belljar-files")
_walks = ThreadPoolExecutor(2, thread_name_prefix="belljar-walks")
#: Calls a function of `jail/workdir.py` or `jail/live_files.py` on the work directory of one program.
OnWorkDir: TypeAlias = Callable[..., Awaitable[Any]]


class Collected(NamedTuple):
    """The files found, and a note for the caller if these are not all."""

    files: tuple[File, ...] = ()
    note: str = ""

    def note_below(self, stderr: bytes | bytearray) -> str:
        """The note as a line of its own at the end of `stderr`."""
        return f"\n{self.note}" if self.note and stderr and not stderr.endswith(b"\n") else self.note


async def collect(execution: Execution, bounds: RequestSettings, on_work_dir: OnWorkDir) -> Collected:
    """The files that the globs of a program match, as many as may be returned."""
    note = ""
    try:
        found = await on_work_dir(workdir.collect, _wanted(execution.artifacts), bounds.file_count, bounds.files_bytes)
    except workdir.TooMuch as error:
        found, note = error.found, f"[artifacts: {error}; what does not fit is left out]\n"
    return Collected(tuple(File(path=path, content=content) for path, content in found), note)


def _wanted(globs: Sequence[str]) -> Callable[[str], bool]:
    """Whether these globs match a path of one tree; it raises TooMuch after too many steps.

    The globs are translated on the first call, since that is slow too, and this is made on the event loop.
    """
    matcher: Matcher | None = None

    def is_wanted(path: str) -> bool:
        nonlocal matcher
        matcher = matcher or Matcher(globs)
        try:
            return matcher.matches(path)
        except TooManySteps as error:
            raise workdir.TooMuch(str(error)) from error

    return is_wanted


async def on_thread(root: int, owner: int | None, work: Callable[..., Any], *args: Any) -> Any:
    """Do `work` on one file, with a copy of the descriptor `root` and the rights of the program.

    `owner` is the program's host uid; None: its rights are our own.
    """
    return await _on_pool(_files, root, owner, work, *args)


async def on_walking_thread(root: int, owner: int | None, work: Callable[..., Any], *args: Any) -> Any:
    """As `on_thread`, for work on a whole tree. Few such jobs run at a time, so that they block no other work."""
    return await _on_pool(_walks, root, owner, work, *args)


async def _on_pool(pool: ThreadPoolExecutor, root: int, owner: int | None, work: Callable[..., Any], *args: Any) -> Any:
    own = os.dup(root)

    def do() -> Any:
        try:
            with file_access.acting_as(owner):
                return work(own, *args)
        finally:
            os.close(own)

    return await asyncio.shield(asyncio.get_running_loop().run_in_executor(pool, do))
