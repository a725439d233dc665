"""Pictures of a program, and displays of a cell, in pieces."""

from __future__ import annotations

import dataclasses

from belljar.backends.local.run.displays import PIECE, DisplayReader, PictureReader
from belljar.settings import RequestSettings

ALLOWED = ()
_BOUNDS = dataclasses.replace(RequestSettings(), display_bytes=4096, display_count=8, flood_bytes=1 << 20)
TOKENS = (PIECE.pack(1, 4, 9) + b"image/png", PIECE.pack(1, 4, 4) + b"\x89PNG", b"text/plain;bundle=1;result")


def run(data: bytes) -> None:
    size, data = (max(1, data[0]), data[1:]) if data else (1, data)
    for kind in (PictureReader, DisplayReader):
        reader = kind(_BOUNDS)
        shown = [each for at in range(0, len(data), size) for each in reader.feed(data[at : at + size])]
        assert shown == reader.complete
        assert len(shown) <= _BOUNDS.display_count
        assert sum(len(each.content) for each in shown) <= _BOUNDS.display_bytes
