"""What a guest claims: what its cell has shown and raised, and why it cannot be opened. Only its own caller reads it.

Anything may stand there, so all of it is bounded and made such that it can be passed on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from belljar.backends.local.run.displays import PictureReader
from belljar.contract.errors import InvalidExecution
from belljar.contract.execution import ProgramError
from belljar.settings import RequestSettings

_SKIPPED_MAX = 256
_REASON_CHARACTERS = 500
_NAME_CHARACTERS, _MESSAGE_CHARACTERS, _TRACE_CHARACTERS = 200, 4000, 20_000


class DisplayReader(PictureReader):
    """Drops what is over the bounds and takes what comes after; broken rules still end all hearing."""

    def __init__(self, bounds: RequestSettings) -> None:
        super().__init__(bounds)
        self.dropped = 0
        self._skipped: dict[int, int] = {}  # bytes still to come, by number

    def _take(self, number: int, size: int, piece: bytes) -> None:
        if number in self._skipped:
            self._skipped[number] -= len(piece)
            if self._skipped[number] <= 0:
                del self._skipped[number]
            return
        is_over = size > self._bytes_left or len(self.complete) + len(self._begun) >= self._count_max
        if number in self._begun or not is_over:
            super()._take(number, size, piece)
            return
        self.dropped += 1
        self._skipped[number] = size
        if len(self._skipped) > _SKIPPED_MAX:
            self._refuse()


def read_error(told: object) -> ProgramError | None:
    """What the guest says its cell raised; anything may stand there."""
    if told is None:
        return None
    if not isinstance(told, dict):
        return ProgramError(type="Error", message="", traceback=())
    name, message, lines = told.get("type"), told.get("message"), told.get("traceback")
    kept: list[str] = []
    left = _TRACE_CHARACTERS
    for line in lines if isinstance(lines, list) else ():
        if not isinstance(line, str) or left <= 0:
            break
        kept.append(clean(line, left))
        left -= len(line) + 1
    return ProgramError(
        type=clean(name, _NAME_CHARACTERS) or "Error",
        message=clean(message, _MESSAGE_CHARACTERS),
        traceback=tuple(kept),
    )


def read_refusal(told: Mapping[str, Any]) -> InvalidExecution | None:
    """Why a guest says that its session cannot be opened as ordered; None if it is not a reason that we know.

    Files, environment and limits of this very order are all that such a word is about, so it cannot be our fault.
    """
    reason = clean(told.get("reason"), _REASON_CHARACTERS) or "no reason was given"
    if told.get("failed") == "files":
        return InvalidExecution(f"the files do not fit: {reason}; ask for more disk_mb", field="files")
    if told.get("failed") == "language":
        message = f"the session's interpreter could not be started within its limits: {reason}; ask for more processes"
        return InvalidExecution(message, field="limits")
    return None


def clean(text: object, characters_max: int) -> str:
    """Text that can be encoded: a lone surrogate would blow up wherever somebody first writes it to a socket."""
    return text[:characters_max].encode("utf-8", "replace").decode() if isinstance(text, str) else ""
