"""A work directory behind another kernel, read and written by the steward: hostile ground, even when everyone is dead.

Names are opened one by one beneath the directory, and no link is followed: older gVisors have no `openat2`. All of it
is done as the program's uid, which is not to reach through us what it cannot reach itself.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator

_PATHS_MAX = 20_000
_DEPTH_MAX = 32
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_TEMPORARY = ".belljar-new"


@contextlib.contextmanager
def acting_as(uid: int) -> Iterator[None]:
    """Be this user, without a capability, for a while; the caller is root and has one thread."""
    groups = os.getgroups()
    try:
        os.setgroups([])
        os.setegid(uid)
        os.seteuid(uid)
        if (os.geteuid(), os.getegid()) != (uid, uid):
            raise PermissionError(errno.EPERM, f"cannot act as uid {uid}")
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)


def walk(root: int) -> list[str]:
    """Every regular file, at any depth."""
    found: list[str] = []
    pending = [""]
    while pending and len(found) < _PATHS_MAX:
        folder = pending.pop()
        try:
            descriptor = _open_dir(root, folder)
        except OSError:
            continue
        try:
            with os.scandir(descriptor) as entries:
                for entry in entries:
                    path = f"{folder}/{entry.name}" if folder else entry.name
                    if entry.is_dir(follow_symlinks=False):
                        if path.count("/") < _DEPTH_MAX:
                            pending.append(path)
                    elif entry.is_file(follow_symlinks=False) and path.isprintable():
                        found.append(path)
        finally:
            os.close(descriptor)
    return found


def describe(root: int) -> list[tuple[str, int, float]]:
    """The same with sizes and times."""
    found = []
    for path in walk(root):
        folder, _, name = path.rpartition("/")
        try:
            directory = _open_dir(root, folder)
            try:
                facts = os.stat(name, dir_fd=directory, follow_symlinks=False)
            finally:
                os.close(directory)
        except OSError:
            continue  # gone meanwhile
        if stat.S_ISREG(facts.st_mode):
            found.append((path, facts.st_size, facts.st_mtime))
    return sorted(found)


def read(root: int, path: str, bytes_max: int) -> bytes | None:
    """A regular file's content, a byte more than `bytes_max` at most; None where there is none."""
    folder, _, name = path.rpartition("/")
    try:
        directory = _open_dir(root, folder)
        try:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open(name, flags, dir_fd=directory)
        finally:
            os.close(directory)
    except OSError:
        return None
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        return file.read(bytes_max + 1)


def write(root: int, path: str, content: bytes) -> None:
    """Make or replace a file.

    Raises:
        OSError: something is in the way, or there is no room.
    """
    folder, _, name = path.rpartition("/")
    directory = _open_dir(root, folder, makes=True)
    try:
        _remove(directory, _TEMPORARY)
        descriptor = os.open(_TEMPORARY, _NEW, 0o644, dir_fd=directory)
        try:
            with open(descriptor, "wb") as file:
                file.write(content)
            os.rename(_TEMPORARY, name, src_dir_fd=directory, dst_dir_fd=directory)
        except OSError:
            _remove(directory, _TEMPORARY)
            raise
    finally:
        os.close(directory)


def delete(root: int, path: str) -> None:
    """Remove a file.

    Raises:
        OSError: there is none.
    """
    folder, _, name = path.rpartition("/")
    directory = _open_dir(root, folder)
    try:
        os.unlink(name, dir_fd=directory)
    finally:
        os.close(directory)


def _remove(directory: int, name: str) -> None:
    try:
        os.unlink(name, dir_fd=directory)
    except FileNotFoundError:
        pass


def _open_dir(root: int, path: str, makes: bool = False) -> int:
    current = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=root)
    for name in [name for name in path.split("/") if name]:
        if name in (".", ".."):
            os.close(current)
            raise OSError("not a plain path")
        try:
            if makes:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, 0o755, dir_fd=current)
            # Without O_DIRECTORY: together with that, older gVisors follow a link all the same.
            deeper = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=current)
        finally:
            os.close(current)
        current = deeper
        if not stat.S_ISDIR(os.fstat(current).st_mode):
            os.close(current)
            raise NotADirectoryError(errno.ENOTDIR, "not a directory")
    return current
