"""Reads, writes and removes single files of a work directory while its program runs and may change anything in it.

As in `workdir`, every name is opened beneath the directory's own descriptor and no link is followed. A file is written
under a temporary name and then renamed over its target: a pipe or a link planted there is replaced, never opened.

The caller has the program's rights over files and no others (`file_access`): the files it creates belong to the
program, and files that the program may not read, replace or remove are left alone.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from belljar.jail import workdir

_ATTEMPTS = 8  # the kernel reports EAGAIN while the tree is being renamed


class Entry(NamedTuple):
    """A regular file."""

    path: str
    size_bytes: int
    modified_at: float


class NotThere(Exception):
    """No regular file has that name, or a link is in the way."""


class NoRoom(Exception):
    """The file system has no room left, or may not be written to."""


def entries(root: int) -> list[Entry]:
    """Every regular file, by path.

    Raises:
        workdir.TooMuch: there are too many to list.
    """
    found = []
    for path in workdir.walk(root):
        with contextlib.suppress(OSError):
            descriptor = _open(root, path, os.O_PATH | os.O_NOFOLLOW)
            try:
                facts = os.fstat(descriptor)
            finally:
                os.close(descriptor)
            if stat.S_ISREG(facts.st_mode):
                found.append(Entry(path, facts.st_size, facts.st_mtime))
    return sorted(found)


def read(root: int, path: str, bytes_max: int) -> bytes:
    """The content of a regular file.

    Raises:
        NotThere: it is not a regular file. workdir.TooMuch: it is larger than `bytes_max`.
    """
    content = workdir.read_regular(root, path, bytes_max)
    if content is None:
        raise NotThere(path)
    return content


def write(root: int, path: str, chunks: Iterable[bytes | memoryview]) -> None:
    """Create or replace a file, and the directories above it; if `chunks` raises, only those directories are new.

    Raises:
        NoRoom: it does not fit. NotThere: something that is not a directory is in the way.
    """
    *above, name = path.split("/")
    with _directory(root, above) as directory:
        own_name = f".belljar-{os.urandom(8).hex()}"
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            descriptor = _open(directory, own_name, flags, 0o644)
            try:
                with open(descriptor, "wb", buffering=0) as file:
                    for chunk in chunks:
                        view = memoryview(chunk)
                        while view:
                            view = view[file.write(view) :]
                os.rename(own_name, name, src_dir_fd=directory, dst_dir_fd=directory)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(own_name, dir_fd=directory)
                raise
        except OSError as error:
            raise _as_error(error, path) from error


def delete(root: int, path: str) -> None:
    """Remove a file, or a link of that name; never a directory.

    Raises:
        NotThere: it does not exist.
    """
    *above, name = path.split("/")
    try:
        directory = _open(root, "/".join(above) or ".", os.O_PATH | os.O_DIRECTORY)
    except OSError:
        raise NotThere(path) from None
    try:
        os.unlink(name, dir_fd=directory)
    except OSError:
        raise NotThere(path) from None
    finally:
        os.close(directory)


@contextlib.contextmanager
def _directory(root: int, names: list[str]) -> Iterator[int]:
    """Open the directory of that path, created where it is missing."""
    current = os.dup(root)
    try:
        for name in names:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o755, dir_fd=current)
            below = _open(current, name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW)
            os.close(current)
            current = below
    except BaseException as error:
        os.close(current)
        if isinstance(error, OSError):
            raise _as_error(error, "/".join(names)) from error
        raise
    try:
        yield current
    finally:
        os.close(current)


def _as_error(error: OSError, path: str) -> Exception:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM):
        return NoRoom(error.strerror or path)
    return NotThere(path)


def _open(root: int, path: str, flags: int, mode: int = 0) -> int:
    for _ in range(_ATTEMPTS):
        with contextlib.suppress(BlockingIOError):
            return workdir.open_beneath(root, path, flags, mode)
    raise OSError(errno.EAGAIN, "the directory changes too fast")
