"""Errors for values of the wrong type or size: each names the field and says what to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from belljar.contract.errors import InvalidExecution, TooLarge


def measure(field: str, text: object) -> int:
    """How many bytes `text` has in UTF-8. Raises InvalidExecution unless it is valid text."""
    if not isinstance(text, str):
        raise wrong_type(field, "a string", text)
    if text.isascii():
        return len(text)
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidExecution(
            f"{field} has a lone surrogate (U+{ord(text[error.start]):04X}) at position {error.start}, which is not "
            "a character; send valid Unicode, and bytes as base64 files",
            field=field,
        ) from None


def measure_word(field: str, text: str) -> int:
    """As `measure`, for text that the kernel ends with a NUL, which counts as well."""
    size = measure(field, text)
    if "\0" in text:
        raise InvalidExecution(f"{field} has a NUL character, which cannot be passed on; remove it", field=field)
    return size + 1


def sequence(field: str, given: object) -> Sequence[Any]:
    """Refuse a bare string, which would be split into its letters."""
    if isinstance(given, (str, bytes)) or not isinstance(given, Sequence):
        raise wrong_type(field, "a list of strings", given)
    return given


def wrong_type(field: str, wanted: str, given: object) -> InvalidExecution:
    """The error for a value of another type than `wanted`."""
    return InvalidExecution(f"{field} must be {wanted}, not {type(given).__name__}", field=field)


def too_large(field: str, size: int, size_max: int, advice: str, unit: str = "bytes") -> TooLarge:
    """The error for more than the server accepts, with what to do instead."""
    return TooLarge(
        f"{field}: {size:,} {unit} are more than the {size_max:,} taken here; {advice}",
        field=field,
        size=size,
        max=size_max,
    )


def show(given: object) -> str:
    """`given` as shown in a message: escaped, and shortened."""
    if isinstance(given, str) and len(given) > 80:
        return repr(given[:80] + "…")
    if isinstance(given, int) and abs(given) > 10**20:
        return "a number of more than 20 digits"
    return repr(given)[:100]
