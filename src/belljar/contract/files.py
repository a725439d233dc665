"""Files of requests and answers, and which names they may have.

Names are checked as text here, before anything touches a disk; `jail/workdir.py` opens them so that a link
planted by the program is never followed. Both are needed: this one gives the caller a clear error.
"""

from __future__ import annotations

from dataclasses import dataclass

from belljar.contract.errors import UnsafePath

NAME_BYTES_MAX = 255
PATH_BYTES_MAX = 1024
PATH_DEPTH_MAX = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """A regular file, by its path relative to the work directory."""

    path: str
    content: bytes


def check_relative_path(path: str) -> str:
    """Return `path` when it names a file inside the work directory, in its shortest form.

    Raises:
        UnsafePath: it is empty, absolute, contains '..', or no file system would accept it.
    """
    try:
        size = len(path.encode("utf-8"))
    except UnicodeEncodeError:
        raise UnsafePath(f"file path {path!r} is not valid Unicode; use UTF-8 names", path=repr(path)) from None
    shown = repr(path if size <= 200 else path[:80] + "…")
    if not path or size > PATH_BYTES_MAX:
        raise UnsafePath(f"file path {shown} must have 1 to {PATH_BYTES_MAX} bytes", path=shown)
    if "\0" in path or "\\" in path:
        raise UnsafePath(f"file path {shown} must not contain NUL or a backslash; separate with '/'", path=shown)
    if path.startswith("/"):
        raise UnsafePath(f"file path {shown} must be relative to the work directory", path=shown)
    if path.endswith("/"):
        raise UnsafePath(f"file path {shown} must name a file, not a directory", path=shown)
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if not parts or ".." in parts:
        raise UnsafePath(f"file path {shown} must stay inside the work directory: no '..'", path=shown)
    if len(parts) > PATH_DEPTH_MAX or any(len(part.encode()) > NAME_BYTES_MAX for part in parts):
        raise UnsafePath(
            f"file path {shown} has a name over {NAME_BYTES_MAX} bytes or more than {PATH_DEPTH_MAX} levels", path=shown
        )
    return "/".join(parts)
