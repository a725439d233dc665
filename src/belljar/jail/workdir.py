"""Reading what a program has left in its work directory, without trusting anything in it.

Called only when every process of the program is dead. Every open goes through openat2 beneath the directory's own
descriptor and follows no link; only regular files are read, never blocking, and names, counts, depth and bytes are
bounded. Nothing here changes the tree: clean-up is the last reference to its mount going away.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Generator, Iterable, Sequence

from belljar.jail import policy, syscalls

DEPTH_MAX = 32
ENTRIES_MAX = 50_000


class TooMuch(Exception):
    """The files asked for are more than may be taken out; the message says which bound."""

    found: Sequence[tuple[str, bytes]] = ()  # those that fit


def collect(root: int, wanted: Callable[[str], bool], count_max: int, bytes_max: int) -> list[tuple[str, bytes]]:
    """The regular files under `root` that `wanted` accepts, as (relative path, content), sorted by path.

    Raises:
        TooMuch: they are more in number or bytes than allowed; those that fit come with it.
    """
    with contextlib.closing(walk(root)) as every:
        paths, trouble = pick(every, wanted)
    if len(paths) > count_max:
        trouble = trouble or TooMuch(f"{len(paths)} files match, at most {count_max} can be returned")
    found: list[tuple[str, bytes]] = []
    left = bytes_max
    for path in paths[:count_max]:
        try:
            content = read_regular(root, path, left)
        except TooMuch as error:
            trouble = trouble or error
            continue
        if content is not None:
            left -= len(content)
            found.append((path, content))
    if trouble is not None:
        trouble.found = found
        raise trouble
    return found


def pick(paths: Iterable[str], wanted: Callable[[str], bool]) -> tuple[list[str], TooMuch | None]:
    """Those that are wanted, sorted; and why they are not all, if either of the two has had enough."""
    found: list[str] = []
    try:
        for path in paths:
            if wanted(path):
                found.append(path)
    except TooMuch as error:
        return sorted(found), error
    return sorted(found), None


def walk(root: int) -> Generator[str, None, None]:
    """Relative paths of every regular file, directory by directory. What nobody can ask for is left out.

    That is a name that is not UTF-8, and a path that is longer, or deeper, than those that go in may be.
    """
    pending = [""]
    seen = 0
    while pending:
        directory = pending.pop()
        try:
            descriptor = syscalls.open_beneath(root, directory or ".", os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            continue  # removed, unreadable to us, or swapped for a link: not ours to judge
        try:
            with os.scandir(descriptor) as entries:
                for entry in entries:
                    seen += 1
                    if seen > ENTRIES_MAX:
                        raise TooMuch(f"the work directory holds more than {ENTRIES_MAX} entries")
                    path = f"{directory}/{entry.name}" if directory else entry.name
                    if not _can_be_asked_for(path):
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        if path.count("/") < DEPTH_MAX:
                            pending.append(path)
                    elif entry.is_file(follow_symlinks=False):
                        yield path
        finally:
            os.close(descriptor)


def _can_be_asked_for(path: str) -> bool:
    try:
        return len(path.encode("utf-8")) <= policy.PATH_BYTES_MAX
    except UnicodeEncodeError:
        return False


def read_regular(root: int, path: str, bytes_max: int) -> bytes | None:
    """The content of a regular file; None when there is none of that name."""
    try:
        descriptor = syscalls.open_beneath(root, path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
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
        if len(content) > bytes_max:  # it grew, or never told the truth about its size
            raise TooMuch(f"{path} has more than the {bytes_max} bytes that are left of what can be returned")
        return content
