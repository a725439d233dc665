"""Globs of a caller over names that a program chose."""

from __future__ import annotations

from belljar.contract.artifacts import TooManySteps, select

ALLOWED = (TooManySteps,)
TOKENS = (b"**/", b"*", b"[!a-z]", b"[", b"]", b"-", b"?", b"/", b".", b"*a*a*b", b"&&", b"~~", b"||", b"\\")


def run(data: bytes) -> None:
    globs, _, paths = data.decode("utf-8", "replace").partition("\0")
    listed = [glob[:256] for glob in globs.split("\n")[:64]]
    names = [path for path in paths.split("\n") if path]
    found = select(names, listed)
    assert set(found) <= set(names)
    if "**" in listed:
        assert set(found) >= {name for name in names if _is_shown(name)}


def _is_shown(path: str) -> bool:
    return all(part and not part.startswith(".") for part in path.split("/"))
