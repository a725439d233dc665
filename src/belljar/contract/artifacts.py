"""Which files are returned: globs over the relative paths of a work directory.

    *        any characters within one name          *.png       pictures at the top, not below
    ?        one character within one name           run?.log
    [a-z]    one character of a set, [!a-z] not      [!_]*.csv
    **       any number of directories, or none      **/*.png    pictures everywhere; out/** all beneath out
    out/     the same as out/**

A name that starts with a dot is matched only where the pattern writes that dot (`.*`, `.cache/**`), as in a shell:
libraries leave their caches in dotted directories, and `**` should not return them. Case counts. There is no
escape; `[*]` is a star.

The globs come from a caller and the paths from a hostile program, so a naive regular expression would let the two
together stop the server (`*a*a*a*a*b`). Three things prevent that:

- A path is matched name by name, and which parts remain open below a directory is computed once for it.
- In a name, everything between two stars is matched atomically, at the earliest place it fits: the star after it can
  match anything that an earlier choice skips, so trying a later place could never turn a failure into a match.
- The remaining cost, a product of lengths, is counted, and all paths of one tree together have a bound.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

GLOB_COUNT_MAX = 64
GLOB_CHARACTERS_MAX = 256
GLOBS_CHARACTERS_MAX = 2048  # all of one execution: translating costs more than matching
STEPS_MAX = 80_000_000  # of matching, for one tree; a few nanoseconds each

_STEPS_PER_NAME = 60  # to compare a part with a name, whatever the two are
_NOT_HIDDEN = r"(?!\.)"


class TooManySteps(Exception):
    """The globs and the paths together take more steps than one request may."""


class Matcher:
    """Matches the paths of one tree against some globs. Fast if paths of one directory follow each other."""

    def __init__(self, globs: Iterable[str]) -> None:
        self._parts, starts = _parse(tuple(globs))
        self._directory = ""
        self._names: list[str] = []  # of that directory
        self._levels = [self._level(starts)]  # what is open in each directory above it, and in it
        self._steps_left = STEPS_MAX

    def matches(self, path: str) -> bool:
        """Whether at least one glob matches.

        Raises:
            TooManySteps: all paths so far together took more than STEPS_MAX.
        """
        directory, _, name = path.rpartition("/")
        if directory != self._directory:
            self._go_to(directory)
        level = self._levels[-1]
        self._count(level.last, name)
        return any(part.fits(name) for part in level.last.parts)

    def _go_to(self, directory: str) -> None:
        names = directory.split("/") if directory else []
        shared = 0
        while shared < min(len(names), len(self._names)) and names[shared] == self._names[shared]:
            shared += 1
        del self._levels[shared + 1 :]
        self._directory, self._names = directory, names
        for name in names[shared:]:
            self._levels.append(self._enter(self._levels[-1], name))

    def _enter(self, level: _Level, name: str) -> _Level:
        self._count(level.open, name)
        found: set[int] = set()
        for at, part in zip(level.numbers, level.open.parts, strict=True):
            if part.fits(name) and (part.stays or not part.is_last):
                found.update(_open_from(self._parts, at if part.stays else at + 1))
        return self._level(sorted(found))

    def _level(self, numbers: list[int]) -> _Level:
        found = [self._parts[at] for at in numbers]
        return _Level(numbers, _count_steps(found), _count_steps([part for part in found if part.is_last]))

    def _count(self, parts: _Parts, name: str) -> None:
        self._steps_left -= parts.steps + parts.steps_per_character * len(name)
        if self._steps_left < 0:
            raise TooManySteps("these patterns and this many files are too much to compare")


class _Part(NamedTuple):
    """The part of a glob for one name, or `**`."""

    fits: Callable[[str], object]
    steps: int  # to compare it with a name, and for each character of that name
    steps_per_character: int
    stays: bool  # it applies to names further down, too
    is_last: bool


class _Parts(NamedTuple):
    """Parts that a name is compared with, and how many steps that takes."""

    parts: list[_Part]
    steps: int
    steps_per_character: int


def _count_steps(parts: list[_Part]) -> _Parts:
    return _Parts(parts, sum(part.steps for part in parts), sum(part.steps_per_character for part in parts))


class _Level(NamedTuple):
    """The parts that names in one directory are compared with: those of directories, and those of files."""

    numbers: list[int]
    open: _Parts
    last: _Parts


def select(paths: Iterable[str], globs: Iterable[str]) -> list[str]:
    """Return the paths that at least one glob matches, in the order given."""
    matcher = Matcher(globs)
    return [path for path in paths if matcher.matches(path)]


@functools.lru_cache(maxsize=256)
def _parse(globs: tuple[str, ...]) -> tuple[list[_Part], list[int]]:
    """The parts of all globs, one after the other, and those with which the names at the top are compared."""
    parts: list[_Part] = []
    starts: list[int] = []
    for glob in globs:
        begin = len(parts)
        names = _names(glob)
        parts += [_part(name, at == len(names) - 1) for at, name in enumerate(names)]
        if names:
            starts += _open_from(parts, begin)
    return parts, starts


def _names(glob: str) -> list[str]:
    names = [name for name in glob.split("/") if name not in ("", ".")]
    if glob.endswith("/"):
        names.append("**")
    return [name for at, name in enumerate(names) if name != "**" or names[at - 1 : at] != ["**"]]


def _open_from(parts: list[_Part], at: int) -> list[int]:
    """The part at this place, and the next one too after `**`, which may stand for no directory at all."""
    return [at, at + 1] if parts[at].stays and not parts[at].is_last else [at]


def _part(name: str, is_last: bool) -> _Part:
    if name == "**":
        return _Part(_is_shown, _STEPS_PER_NAME, 0, True, is_last)
    if not set(name) & set("*?["):
        return _Part(name.__eq__, _STEPS_PER_NAME, 0, False, is_last)
    first, *floating = _cut_at_stars(name)
    tried_everywhere = max([len("".join(part)) for part in floating[:-1]], default=0)
    pattern = re.compile(_translate_name(name, first, floating) + r"\Z")
    return _Part(pattern.match, _STEPS_PER_NAME + len(name), 1 + tried_everywhere, False, is_last)


def _is_shown(name: str) -> bool:
    return name[:1] not in ("", ".")


def _cut_at_stars(name: str) -> list[list[str]]:
    """What stands before, between and after the stars, each an expression for every character."""
    pieces: list[list[str]] = [[]]
    for token in _tokens(name):
        if token == "*":
            pieces.append([])
        else:
            pieces[-1].append(token)
    return pieces


def _translate_name(name: str, first: list[str], floating: list[list[str]]) -> str:
    """One expression for a name that was cut; every piece but the outer ones floats between characters."""
    start = ("" if name.startswith(".") else _NOT_HIDDEN) + "".join(first)
    if not floating:
        return start
    *middle, last = floating
    between = "".join(rf"(?>[^/]*?{''.join(piece)})" for piece in middle if piece)
    end = rf"(?=[^/]{{{len(last)}}})(?>[^/]*)(?<={''.join(last)})" if last else "[^/]*"
    return rf"(?=[^/]){start}{between}{end}"


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
