"""Large answers, encoded piece by piece while the client reads them.

Encoding a large answer at once would block every other request and hold several copies of it. So the long texts and
files of an answer are left out of its JSON at first, with a mark in their place, and encoded in slices when they are
sent. Small answers have no long leaves and are one piece.
"""

from __future__ import annotations

import base64
import codecs
import os
from collections.abc import Iterator
from typing import Any

import msgspec

from belljar.contract.execution import Leaves
from belljar.frontends.api.responses import encode_json

LARGE = 64 * 1024  # larger answers are sent in pieces
_LONG = 4 * 1024  # bytes or characters of one leaf of such an answer; longer leaves are encoded separately
_SLICE = 192 * 1024  # a multiple of 3, for base64
_MARK = os.urandom(16).hex()  # no answer contains it: it never leaves the server
_SPLIT = f'"{_MARK}"'.encode()


class _Text:
    def __init__(self, text: str) -> None:
        self._text = text

    def pieces(self) -> Iterator[bytes]:
        for at in range(0, len(self._text), _SLICE):
            yield encode_json(self._text[at : at + _SLICE])[1:-1]


class _Utf8:
    def __init__(self, content: bytes) -> None:
        self._content = content

    def pieces(self) -> Iterator[bytes]:
        decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        for at in range(0, len(self._content), _SLICE):
            is_last = at + _SLICE >= len(self._content)
            yield encode_json(decode(self._content[at : at + _SLICE], is_last))[1:-1]


class _Base64:
    def __init__(self, content: bytes) -> None:
        self._content = content

    def pieces(self) -> Iterator[bytes]:
        for at in range(0, len(self._content), _SLICE):
            yield base64.b64encode(self._content[at : at + _SLICE])


_LEAVES = (_Text, _Utf8, _Base64)


#: For `as_json`: long leaves are encoded later.
LATER = Leaves(
    text=lambda text: text if len(text) < _LONG else _Text(text),
    utf8=lambda content: content.decode("utf-8", "replace") if len(content) < _LONG else _Utf8(content),
    base64=lambda content: base64.b64encode(content).decode("ascii") if len(content) < _LONG else _Base64(content),
)


def pieces_of(tree: Any) -> Iterator[bytes]:
    """The JSON of `tree`, in pieces that take a few milliseconds each to encode."""
    long: list[Any] = []

    def mark(leaf: Any) -> Any:
        if not isinstance(leaf, _LEAVES):
            return repr(leaf)
        long.append(leaf)
        return _MARK

    outline = msgspec.json.encode(tree, enc_hook=mark).split(_SPLIT)
    yield outline[0]
    for leaf, after in zip(long, outline[1:], strict=True):
        yield b'"'
        yield from leaf.pieces()
        yield b'"' + after
