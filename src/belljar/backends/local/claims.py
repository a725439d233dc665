"""What a guest claims about its cell: what it has shown, and what it has raised. Only its own caller reads it.

Anything may stand there, so all of it is bounded and made such that it can be passed on.
"""

from __future__ import annotations

from belljar.backends.local.pictures import PictureReader
from belljar.contract.execution import ProgramError
from belljar.settings import RequestSettings

_SKIPPED_MAX = 256
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
        kept.append(_clean(line, left))
        left -= len(line) + 1
    return ProgramError(
        type=_clean(name, _NAME_CHARACTERS) or "Error",
        message=_clean(message, _MESSAGE_CHARACTERS),
        traceback=tuple(kept),
    )


def _clean(text: object, characters_max: int) -> str:
    """Text that can be encoded: a lone surrogate would blow up wherever somebody first writes it to a socket."""
    return text[:characters_max].encode("utf-8", "replace").decode() if isinstance(text, str) else ""
