"""The policy of restricted Python: good errors and least surprise. The jail is the boundary, never this."""

from __future__ import annotations

from dataclasses import dataclass

#: What a restricted program may import when its caller names nothing.
DEFAULT_IMPORTS = (
    "collections",
    "datetime",
    "itertools",
    "math",
    "queue",
    "random",
    "re",
    "stat",
    "statistics",
    "time",
    "unicodedata",
)
PRINT_CHARACTERS_MAX = 50_000
PRINT_CHARACTERS_CEILING = 1 << 30  # what a caller may ask for; the output limit holds all the same
IMPORT_COUNT_MAX = 1000
ANY_IMPORT = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Restriction:
    """What a restricted program may do."""

    imports: tuple[str, ...] = DEFAULT_IMPORTS  # a name allows its submodules too
    print_characters: int = PRINT_CHARACTERS_MAX  # what is printed past this is cut, and said to be
