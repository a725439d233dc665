"""The policy of restricted Python, for good error messages. It is not a security boundary; the jail is."""

from __future__ import annotations

from dataclasses import dataclass

#: What a restricted program may import by default.
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
PRINT_CHARACTERS_CEILING = 1 << 30  # the most a request may set; the output limit holds as well
IMPORT_COUNT_MAX = 1000
ANY_IMPORT = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Restriction:
    """What a restricted program may do."""

    imports: tuple[str, ...] = DEFAULT_IMPORTS  # a name allows its submodules too
    print_characters: int = PRINT_CHARACTERS_MAX  # printed text past this is cut, with a note
