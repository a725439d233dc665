"""The policy for restricted Python in a request, checked and made into a Restriction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from belljar.contract.errors import InvalidExecution
from belljar.contract.request import NestedObject
from belljar.contract.restriction import ANY_IMPORT, IMPORT_COUNT_MAX, PRINT_CHARACTERS_CEILING, Restriction
from belljar.settings import Settings

_FIELDS = ("imports", "max_print_length")
_NAME_CHARACTERS_MAX = 200


def read_restriction(
    settings: Settings, given: Restriction | Mapping[str, Any] | NestedObject, language: str = "python"
) -> Restriction:
    """The policy of a request; what is left out, or None, is the server's default.

    Raises:
        InvalidExecution: it makes no sense; the message names the field.
    """
    if language != "python":
        raise InvalidExecution(f"restrict is for Python only, not for {language}; leave it out", field="restrict")
    if isinstance(given, Restriction):
        given = {"imports": given.imports, "max_print_length": given.print_characters}
    elif isinstance(given, NestedObject):
        given = given.given()
    if not isinstance(given, Mapping):
        raise InvalidExecution(
            f"restrict must be a mapping with {' and '.join(_FIELDS)}, not {type(given).__name__}", field="restrict"
        )
    unknown = [name for name in given if name not in _FIELDS]
    if unknown:
        raise InvalidExecution(
            f"restrict has no {str(unknown[0])[:80]!r}; choose from {', '.join(_FIELDS)}", field="restrict"
        )
    imports, print_characters = given.get("imports"), given.get("max_print_length")
    default = settings.restriction
    return Restriction(
        imports=default.imports if imports is None else _read_imports(imports),
        print_characters=default.print_characters if print_characters is None else _read_length(print_characters),
    )


def _read_imports(given: object) -> tuple[str, ...]:
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise InvalidExecution(
            f"restrict.imports must be a list of module names, not {type(given).__name__}", field="restrict.imports"
        )
    names = tuple(given)
    if len(names) > IMPORT_COUNT_MAX:
        raise InvalidExecution(
            f"restrict.imports has {len(names):,} names, more than the {IMPORT_COUNT_MAX:,} taken here; name packages "
            "instead of their modules",
            field="restrict.imports",
        )
    for name in names:
        if not _is_module_name(name):
            raise InvalidExecution(
                f"restrict.imports has {str(name)[:80]!r}, which cannot be a module; write names such as 'math', "
                f"'numpy.linalg', or {ANY_IMPORT!r} for all",
                field="restrict.imports",
            )
    return tuple(dict.fromkeys(names))


def _is_module_name(name: object) -> bool:
    if not isinstance(name, str) or len(name) > _NAME_CHARACTERS_MAX:
        return False
    return name == ANY_IMPORT or all(part.isidentifier() for part in name.removesuffix(".*").split("."))


def _read_length(given: object) -> int:
    if isinstance(given, bool) or not isinstance(given, int):
        raise InvalidExecution(
            f"restrict.max_print_length must be a whole number, not {type(given).__name__}",
            field="restrict.max_print_length",
        )
    if not 1 <= given <= PRINT_CHARACTERS_CEILING:
        raise InvalidExecution(
            f"restrict.max_print_length must be 1 to {PRINT_CHARACTERS_CEILING:,} characters",
            field="restrict.max_print_length",
        )
    return given
