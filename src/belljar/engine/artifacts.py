"""Which files come back: globs over the relative paths of a work directory.

    *        any characters within one name          *.png       pictures at the top, not below
    ?        one character within one name           run?.log
    [a-z]    one character of a set, [!a-z] not      [!_]*.csv
    **       any number of directories, or none      **/*.png    pictures everywhere; out/** all beneath out
    out/     the same as out/**

A name that starts with a dot is matched only where the pattern writes that dot (`.*`, `.cache/**`), as in a shell:
libraries leave their caches in dotted directories, and `**` should not carry them home. Case counts. There is no
escape; `[*]` is a star.

The globs come from a caller and the paths from a hostile program, so a naive regular expression would let the two
together stop the server (`*a*a*a*a*b`). Everything between two wildcards is therefore matched atomically, at the
earliest place it fits: the wildcard after it can make up for anything an earlier choice costs, so trying a later
place could never turn a failure into a match. That holds for `*` between characters and for `**` between names.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator

GLOB_COUNT_MAX = 64
GLOB_CHARACTERS_MAX = 256
GLOBS_CHARACTERS_MAX = 2048  # all of one execution: translating costs more than matching

_NOT_HIDDEN = r"(?!\.)"
_ANY_NAME = r"(?!\.)[^/]+"


def select(paths: Iterable[str], globs: Iterable[str]) -> list[str]:
    """Return the paths that at least one glob matches, in the order given."""
    matches = compile_globs(tuple(globs)).fullmatch
    return [path for path in paths if matches(path)]


@functools.lru_cache(maxsize=256)
def compile_globs(globs: tuple[str, ...]) -> re.Pattern[str]:
    """Translate globs into one pattern for `fullmatch`; without globs it matches nothing."""
    return re.compile("|".join(rf"(?:{_translate(glob)})\Z" for glob in globs) or r"(?!)")


def _translate(glob: str) -> str:
    """Cut a glob at each `**` into runs of names; all runs but the outer ones float between directories."""
    names = [name for name in glob.split("/") if name not in ("", ".")]
    if glob.endswith("/"):
        names.append("**")
    runs: list[list[str]] = [[]]
    for name in names:
        if name != "**":
            runs[-1].append(_translate_name(name))
        elif runs[-1] or len(runs) == 1:  # `**/**` says no more than `**`
            runs.append([])
    first, *floating = ["/".join(run) for run in runs]
    if not floating:
        return first or r"(?!)"
    *middle, last = floating
    start = first + "/" if first else ""
    between = "".join(rf"(?>(?:{_ANY_NAME}/)*?{run}/)" for run in middle)
    return start + between + rf"(?:{_ANY_NAME}/)*?" + (last or _ANY_NAME)


def _translate_name(name: str) -> str:
    """Cut one name at its stars; every part but the outer ones floats between characters."""
    parts = [""]
    for token in _tokens(name):
        if token == "*":
            parts.append("")
        else:
            parts[-1] += token
    guard = "" if name.startswith(".") else _NOT_HIDDEN
    if len(parts) == 1:
        return guard + parts[0]
    floating = "".join(rf"(?>[^/]*?{part})" for part in parts[1:-1] if part)
    return rf"{guard}(?=[^/])(?>{parts[0]}{floating}[^/]*{parts[-1]}(?![^/]))"


def _tokens(name: str) -> Iterator[str]:
    """Yield "*", or the expression that matches exactly one character."""
    at = 0
    while at < len(name):
        end = _set_end(name, at) if name[at] == "[" else 0
        if end:
            yield _translate_set(name[at + 1 : end])
            at = end
        elif name[at] == "*":
            yield "*"
        else:
            yield "[^/]" if name[at] == "?" else re.escape(name[at])
        at += 1


def _set_end(name: str, start: int) -> int:
    """Where the set that opens at `start` closes, or 0: an unclosed bracket is a bracket."""
    first = start + 1
    if name[first : first + 1] in ("!", "^"):
        first += 1
    return max(name.find("]", first + 1), 0)  # a "]" in first place is a member


def _translate_set(members: str) -> str:
    negated = members[0] in "!^"
    rest = members[1:] if negated else members
    pieces, at = "", 0
    while at < len(rest):
        low, high = rest[at], rest[at]
        if rest[at + 1 : at + 2] == "-" and at + 2 < len(rest):
            high = rest[at + 2]
            at += 2
        if low <= high:  # a range that runs backwards is empty
            pieces += f"{re.escape(low)}-{re.escape(high)}"
        at += 1
    if negated:
        return f"[^/{pieces}]"
    return f"(?!/)[{pieces}]" if pieces else "(?!)"
