"""Pictures that come out of a guest."""

from __future__ import annotations

import re
import struct

from belljar.contract.execution import Display
from belljar.settings import RequestSettings

PIECE = struct.Struct("=QIH")  # number of the picture, its bytes in all, bytes of this piece
_PIECE_BYTES = 256  # what a piece counts for beside what is in it: small ones are work, too
_MIME = re.compile(r"([a-z]+/[A-Za-z0-9.+-]{1,64})(?:;bundle=([0-9]{1,9})(;result)?)?")


class PictureReader:
    """Puts pictures together from a pipe into which a hostile program may write anything.

    Pieces of several pictures may alternate, as threads and processes write them. A piece is `PIECE`, and that much
    of the picture; a picture's first piece is its type, and in a session which bundle of forms it belongs to. See
    `inside/guest/displays.py`.
    """

    def __init__(self, bounds: RequestSettings) -> None:
        self.complete: list[Display] = []
        self.is_refused = False  # it broke the rules or the bounds; nothing more is heard
        self.flood_bytes = 0  # what all that came counts for, against `request.flood_bytes`
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


def _display(told: re.Match[str], content: bytes) -> Display:
    mime, bundle, result = told.groups()
    return Display(mime=mime, content=content, bundle=int(bundle) if bundle else None, is_result=bool(result))
