"""Files a program made, saved on the host.

Their names and contents are the program's choice. A name was checked to stay inside the directory; here no link on the
way is followed either, so that one lying about in the output directory does not lead a file elsewhere.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterable, Sequence
from pathlib import Path

from belljar.contract.errors import CallerError
from belljar.contract.execution import Display
from belljar.contract.files import File, check_relative_path

_SUFFIXES = {
    "application/json": "json",
    "application/pdf": "pdf",
    "image/gif": "gif",
    "image/jpeg": "jpg",
    "image/png": "png",
    "image/svg+xml": "svg",
    "image/webp": "webp",
    "text/html": "html",
    "text/latex": "tex",
    "text/markdown": "md",
    "text/plain": "txt",
}


def as_files(displays: Iterable[Display]) -> list[File]:
    """Pictures as files, numbered in the order they were shown."""
    return [
        File(path=f"display-{number}.{_SUFFIXES.get(each.mime, 'bin')}", content=each.content)
        for number, each in enumerate(displays, 1)
    ]


def refuse_existing(directory: Path, globs: Sequence[str]) -> None:
    """Before the program runs: refuse names that are sure to be taken. A pattern with wildcards is no name yet.

    Raises:
        CallerError: one exists.
    """
    for glob in globs:
        if not set(glob) & set("*?[") and os.path.lexists(directory / glob) and not glob.endswith("/"):
            raise _taken(directory / glob)


def save(directory: Path, files: Sequence[File], replace: bool) -> None:
    """Write all files, or none if one would overwrite something and `replace` is not given.

    Raises:
        CallerError: something is in the way, or the directory cannot be written to.
    """
    if not replace:
        for file in files:
            if os.path.lexists(directory / file.path):
                raise _taken(directory / file.path)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        root = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise CallerError(f"cannot save files in {directory}: {error.strerror}") from error
    try:
        for file in files:
            try:
                _save_one(root, check_relative_path(file.path), file.content, replace)
            except OSError as error:
                raise CallerError(f"cannot save {directory / file.path}: {error.strerror}") from error
    finally:
        os.close(root)


def _taken(path: Path) -> CallerError:
    return CallerError(f"{path} exists; overwrite it with --force, or choose another directory")


def _save_one(root: int, path: str, content: bytes, replace: bool) -> None:
    *parents, name = path.split("/")
    with contextlib.ExitStack() as opened:
        directory = root
        for each in parents:
            directory = _descend(directory, each)
            opened.callback(os.close, directory)
        if not replace:
            _write_new(directory, name, content)
            return
        # Under another name first: a disk that runs full must not cost the file that was there.
        temporary = f".belljar-{secrets.token_hex(8)}"
        _write_new(directory, temporary, content)
        os.replace(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)


def _descend(directory: int, name: str) -> int:
    """The directory `name` in another one, made if need be; the caller owns both."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, dir_fd=directory)
    return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)


def _write_new(directory: int, name: str, content: bytes) -> None:
    descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666, dir_fd=directory)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
    except BaseException:
        os.unlink(name, dir_fd=directory)  # half a file is worse than none
        raise
