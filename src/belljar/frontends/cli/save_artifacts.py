"""Saves the files that a program created on the host.

The program chooses their names and contents, so names are checked to stay inside the directory, and symbolic links in
the path are not followed (`client/artifacts.py`).
"""

from __future__ import annotations

import os
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
    """Name displays `display-1.png` and so on, in the order they were shown."""
    return [
        File(path=f"display-{number}.{_SUFFIXES.get(each.mime, 'bin')}", content=each.content)
        for number, each in enumerate(displays, 1)
    ]


def refuse_existing(directory: Path, globs: Sequence[str]) -> None:
    """Check before the program runs that artifacts without wildcards in their names do not exist yet.

    Raises:
        CallerError: one exists.
    """
    for glob in globs:
        if not set(glob) & set("*?[") and os.path.lexists(directory / glob) and not glob.endswith("/"):
            raise _taken(directory / glob)


def save(directory: Path, files: Sequence[File], replace: bool) -> None:
    """Write all files, or none if one exists and `replace` is false.

    Raises:
        CallerError: a file exists, or the directory is not writable.
    """
    from belljar.client.artifacts import write_below  # late: most programs leave nothing to save

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
                write_below(root, check_relative_path(file.path), file.content, replace)
            except OSError as error:
                raise CallerError(f"cannot save {directory / file.path}: {error.strerror}") from error
    finally:
        os.close(root)


def _taken(path: Path) -> CallerError:
    return CallerError(f"{path} exists; overwrite it with --force or choose another directory")
