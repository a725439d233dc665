"""Reads displays, errors and refusals that a guest sends: all of it untrusted."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from typing import Any

from belljar.contract.errors import InvalidExecution
from belljar.contract.execution import Display, ProgramError
from belljar.settings import RequestSettings

PIECE = struct.Struct("=QIH")  # number of the picture, its bytes in all, bytes of this piece
_PIECE_BYTES = 256  # what a piece counts for beside its content: small ones cost work, too
_MIME = re.compile(r"([a-z]+/[A-Za-z0-9.+-]{1,64})(?:;bundle=([0-9]{1,9})(;result)?)?")


class PictureReader:
    """Assembles pictures from a pipe into which a hostile program may write anything.

    Pieces of several pictures may alternate, as threads and processes write them. A piece is `PIECE`, and that much
    of the picture; a picture's first piece is its type, and in a session which bundle of forms it belongs to. See
    `inside/guest/displays.py`.
    """

    def __init__(self, bounds: RequestSettings) -> None:
        self.complete: list[Display] = []
        self.is_refused = False  # it broke the rules or the bounds; nothing more is read
        self.flood_bytes = 0  # what counts against `request.flood_bytes` so far
        self._flood_bytes_max = bounds.flood_bytes
        self._bytes_left = bounds.display_bytes
        self._count_max = bounds.display_count
        self._unread = bytearray()
        self._begun: dict[int, tuple[re.Match[str], int, bytearray]] = {}  # type, size and what there is, by number

    def feed(self, chunk: bytes) -> list[Display]:
        """Take some bytes; the pictures they complete."""
        self.flood_bytes += len(chunk)
        if self.flood_bytes > self._flood_bytes_max:
            self._refuse()
        if self.is_refused:
            return []
        self._unread += chunk
        already = len(self.complete)
        while len(self._unread) >= PIECE.size and not self.is_refused:
            number, size, length = PIECE.unpack_from(self._unread)
            end = PIECE.size + length
            if len(self._unread) < end:
                break
            self.flood_bytes += _PIECE_BYTES
            self._take(number, size, bytes(self._unread[PIECE.size : end]))
            del self._unread[:end]
        return self.complete[already:]

    def _take(self, number: int, size: int, piece: bytes) -> None:
        if number not in self._begun:
            mime = _MIME.fullmatch(piece.decode("ascii", "replace"))
            too_many = len(self.complete) + len(self._begun) >= self._count_max
            if mime is None or not 0 < size <= self._bytes_left or too_many:
                self._refuse()
                return
            self._bytes_left -= size
            self._begun[number] = mime, size, bytearray()
            return
        mime, size, content = self._begun[number]
        content += piece
        if len(content) > size or not piece:
            self._refuse()
        elif len(content) == size:
            del self._begun[number]
            self.complete.append(_display(mime, bytes(content)))

    def _refuse(self) -> None:
        self.is_refused = True
        self._begun.clear()
        self._unread.clear()


def _display(kind: re.Match[str], content: bytes) -> Display:
    mime, bundle, result = kind.groups()
    return Display(mime=mime, content=content, bundle=int(bundle) if bundle else None, is_result=bool(result))


_SKIPPED_MAX = 256
_REASON_CHARACTERS = 500
_NAME_CHARACTERS, _MESSAGE_CHARACTERS, _TRACE_CHARACTERS = 200, 4000, 20_000


class DisplayReader(PictureReader):
    """Drops pictures that exceed the bounds and reads on; broken rules still end all reading."""

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


def read_error(report: object) -> ProgramError | None:
    """The error that the guest reports for its cell, with every field checked and cut."""
    if report is None:
        return None
    if not isinstance(report, dict):
        return ProgramError(type="Error", message="", traceback=())
    name, message, lines = report.get("type"), report.get("message"), report.get("traceback")
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


def read_refusal(report: Mapping[str, Any]) -> InvalidExecution | None:
    """Why a guest reports that its session cannot be opened as ordered; None if the reason is unknown.

    Such a report is only about files, environment and limits of this order, so it cannot be our fault.
    """
    reason = clean(report.get("reason"), _REASON_CHARACTERS) or "no reason was given"
    if report.get("failed") == "files":
        return InvalidExecution(f"the files do not fit: {reason}; ask for more disk_mb", field="files")
    if report.get("failed") == "language":
        message = f"the session's interpreter could not be started within its limits: {reason}; ask for more processes"
        return InvalidExecution(message, field="limits")
    return None


def clean(text: object, characters_max: int) -> str:
    """Text that can be encoded: a lone surrogate would raise where the text is first written to a socket."""
    return text[:characters_max].encode("utf-8", "replace").decode() if isinstance(text, str) else ""
