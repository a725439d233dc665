"""Reads what a program has left in its work directory, without trusting anything in it.

Called only when every process of the program is dead. Every open stays beneath the directory's own descriptor and
follows no link; only regular files are read, never blocking, and names, counts, depth and bytes are bounded. Nothing
here changes the tree: it goes away with the last reference to its mount.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Generator, Iterable, Sequence

from belljar.jail import policy, syscalls

DEPTH_MAX = 32
ENTRIES_MAX = 50_000


class TooMuch(Exception):
    """The requested files are more than may be returned; the message names the bound."""

    found: Sequence[tuple[str, bytes]] = ()  # those that fit


def collect(root: int, wanted: Callable[[str], bool], count_max: int, bytes_max: int) -> list[tuple[str, bytes]]:
    """The regular files under `root` that `wanted` accepts, as (relative path, content), sorted by path.

    Raises:
        TooMuch: they are more in number or bytes than allowed; those that fit come with it.
    """
    with contextlib.closing(walk(root)) as paths:
        chosen, trouble = choose(paths, wanted, count_max)
    found, excess = read_all(root, chosen, bytes_max)
    return whole(found, trouble or excess)


def choose(paths: Iterable[str], wanted: Callable[[str], bool], count_max: int) -> tuple[list[str], TooMuch | None]:
    """The wanted paths, sorted, at most `count_max`; and why these are not all."""
    found: list[str] = []
    trouble = None
    try:
        for path in paths:
            if wanted(path):
                found.append(path)
    except TooMuch as error:
        trouble = error
    if len(found) > count_max:
        trouble = trouble or TooMuch(f"{len(found)} files match, at most {count_max} can be returned")
    return sorted(found)[:count_max], trouble


def read_all(root: int, paths: Iterable[str], bytes_max: int) -> tuple[list[tuple[str, bytes]], TooMuch | None]:
    """The contents of those that are regular files, as far as they fit together; and why these are not all."""
    found: list[tuple[str, bytes]] = []
    trouble = None
    for path in paths:
        try:
            content = read_regular(root, path, bytes_max)
        except TooMuch as error:
            trouble = trouble or error
            continue
        if content is not None:
            bytes_max -= len(content)
            found.append((path, content))
    return found, trouble


def whole(found: list[tuple[str, bytes]], trouble: TooMuch | None) -> list[tuple[str, bytes]]:
    """Return `found` if that is all; else raise `trouble`, with `found` in it."""
    if trouble is not None:
        trouble.found = found
        raise trouble
    return found


def walk(root: int) -> Generator[str, None, None]:
    """Relative paths of every regular file, directory by directory.

    Names that are not UTF-8, and paths longer or deeper than a request may name, are left out.
    """
    pending = [""]
    seen = 0
    while pending:
        directory = pending.pop()
        try:
            descriptor = open_beneath(root, directory or ".", os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            continue  # removed, unreadable to us, or replaced by a link
        try:
            with os.scandir(descriptor) as entries:
                for entry in entries:
                    seen += 1
                    if seen > ENTRIES_MAX:
                        raise TooMuch(f"the work directory holds more than {ENTRIES_MAX} entries")
                    path = f"{directory}/{entry.name}" if directory else entry.name
                    if not _can_be_requested(path):
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        if path.count("/") < DEPTH_MAX:
                            pending.append(path)
                    elif entry.is_file(follow_symlinks=False):
                        yield path
        finally:
            os.close(descriptor)


def _can_be_requested(path: str) -> bool:
    try:
        return len(path.encode("utf-8")) <= policy.PATH_BYTES_MAX
    except UnicodeEncodeError:
        return False


def read_regular(root: int, path: str, bytes_max: int) -> bytes | None:
    """The content of a regular file; None if `path` is anything else.

    Raises:
        TooMuch: it has more than `bytes_max` bytes.
    """
    try:
        descriptor = open_beneath(root, path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:
        return None
    facts = os.fstat(descriptor)
    if not stat.S_ISREG(facts.st_mode):
        os.close(descriptor)
        return None
    with open(descriptor, "rb", buffering=0) as file:
        if facts.st_size > bytes_max:
            raise TooMuch(f"{path} has {facts.st_size} bytes, {bytes_max} are left of what can be returned")
        content = file.read(bytes_max + 1)
        if len(content) > bytes_max:  # it grew, or its size was wrong from the start
            raise TooMuch(f"{path} has more than the {bytes_max} bytes that are left of what can be returned")
        return content


def open_beneath(root: int, path: str, flags: int, mode: int = 0) -> int:
    """Open `path` under `root` without following any link; name by name where the kernel has no openat2, as in gVisor.

    Raises:
        OSError: the file does not exist, or cannot be opened. NoDescriptors: no file could be.
    """
    try:
        return syscalls.open_beneath(root, path, flags, mode)
    except OSError as error:
        if error.errno != errno.ENOSYS:
            raise
    *above, name = [name for name in path.split("/") if name not in ("", ".")] or ["."]
    if ".." in (*above, name):
        raise OSError(errno.EXDEV, "not beneath the directory")
    current = os.dup(root)
    try:
        for each in above:
            below = _open_name(current, each, os.O_PATH | os.O_DIRECTORY)
            os.close(current)
            current = below
        return _open_name(current, name, flags, mode)
    finally:
        os.close(current)


def _open_name(directory: int, name: str, flags: int, mode: int = 0) -> int:
    """Without O_DIRECTORY: together with that, older gVisors follow a link in spite of O_NOFOLLOW."""
    safe = flags & ~os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(name, safe, mode, dir_fd=directory)
    if flags & os.O_DIRECTORY and not stat.S_ISDIR(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotADirectoryError(errno.ENOTDIR, "not a directory")
    return descriptor
