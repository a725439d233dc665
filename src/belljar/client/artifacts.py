"""Saves the artifacts of a program in a directory.

Names and contents come from the program, which is hostile. A name is checked as text before anything is written, and
then opened step by step from the directory without following links, so that neither a name nor a link that is already
there can lead a file elsewhere.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from pathlib import Path

from belljar.contract.errors import CallerError, UnsafePath
from belljar.contract.execution import Outcome
from belljar.contract.files import check_relative_path

_IN_THE_WAY = {errno.ELOOP, errno.ENOTDIR, errno.EISDIR}


def save_artifacts(outcome: Outcome, directory: str | os.PathLike[str], *, replace: bool = False) -> list[Path]:
    """Write the artifacts of an outcome below `directory`, which is created if needed, and return their paths.

    Raises:
        UnsafePath: a name would leave the directory, or one of its parents is not a directory.
        CallerError: a file exists and `replace` is not set; then nothing was written.
        OSError: writing failed.
    """
    base = Path(directory)
    paths = [check_relative_path(file.path) for file in outcome.artifacts]
    if os.open not in os.supports_dir_fd:
        raise CallerError("this system cannot save files without following links; write outcome.artifacts yourself")
    if not replace:
        for path in paths:
            if os.path.lexists(base / path):
                raise _already_exists(base / path)
    base.mkdir(parents=True, exist_ok=True)
    root = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for path, file in zip(paths, outcome.artifacts, strict=True):
            _save(root, base, path, file.content, replace)
    finally:
        os.close(root)
    return [base / path for path in paths]


def _save(root: int, base: Path, path: str, content: bytes, replace: bool) -> None:
    try:
        write_below(root, path, content, replace)
    except FileExistsError as error:
        raise _already_exists(base / path) from error
    except OSError as error:
        if error.errno not in _IN_THE_WAY:
            raise
        raise UnsafePath(
            f"{base / path} cannot be saved: a link or something else is in its way; choose an empty directory",
            path=path,
        ) from error


def write_below(root: int, path: str, content: bytes, replace: bool) -> None:
    """Write a file below an open directory, by a checked name, without following links.

    Raises:
        OSError: something is in the way, or writing failed; then no part of the file is left.
    """
    *parents, name = path.split("/")
    with contextlib.ExitStack() as opened:
        directory = root
        for each in parents:
            directory = _descend(directory, each)
            opened.callback(os.close, directory)
        _write(directory, name, content, replace)


def _descend(directory: int, name: str) -> int:
    """Open the directory `name` in another one, and create it if needed; the caller closes it."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, dir_fd=directory)
    return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)


def _write(directory: int, name: str, content: bytes, replace: bool) -> None:
    if not replace:
        _write_new(directory, name, content)
        return
    # Under another name first: a full disk must not destroy the old file. Renaming replaces a link itself.
    temporary = f".belljar-{secrets.token_hex(8)}"
    _write_new(directory, temporary, content)
    try:
        os.replace(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        os.unlink(temporary, dir_fd=directory)
        raise


def _write_new(directory: int, name: str, content: bytes) -> None:
    descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666, dir_fd=directory)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
    except BaseException:
        os.unlink(name, dir_fd=directory)  # no file is better than half of one
        raise


def _already_exists(path: Path) -> CallerError:
    return CallerError(f"{path} exists; pass replace=True to overwrite it, or choose another directory")
