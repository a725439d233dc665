"""Large answers, encoded a piece at a time while the client takes them.

Encoding a large answer at once would stop every other request for as long as it takes, and hold it several times over.
So the long texts and files of an answer are left out of its JSON at first, each with a mark in its place, and encoded
in slices when their turn comes. Small answers have no long leaves and are one piece.
"""

from __future__ import annotations

import base64
import codecs
import os
from collections.abc import Iterator
from typing import Any

import msgspec

from belljar.contract.execution import Leaves, Outcome
from belljar.frontends.api.request import Request
from belljar.frontends.api.responses import encode_json, reply

LARGE = 64 * 1024  # answers from here on are sent in pieces
_LONG = 4 * 1024  # bytes or characters of one leaf of such an answer, from which on it is encoded by itself
_SLICE = 192 * 1024  # a multiple of 3, for base64
_MARK = os.urandom(16).hex()  # no answer holds it: it is never told to anybody
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


def _text(text: str) -> Any:
    return text if len(text) < _LONG else _Text(text)


def _utf8(content: bytes) -> Any:
    return content.decode("utf-8", "replace") if len(content) < _LONG else _Utf8(content)


def _base64(content: bytes) -> Any:
    return base64.b64encode(content).decode("ascii") if len(content) < _LONG else _Base64(content)


#: For `as_json`: what is long is encoded later.
LATER = Leaves(text=_text, utf8=_utf8, base64=_base64)


async def reply_outcome(request: Request, outcome: Outcome) -> None:
    """Answer with an outcome, counted until the client has taken it."""
    size = outcome.size_bytes
    if size <= LARGE:
        await reply(request.send, encode_json(outcome.as_json()))
        return
    request.keep(size)
    tree = outcome.as_json(LATER)
    await request.reply_in_pieces(lambda: pieces_of(tree))


def pieces_of(tree: Any) -> Iterator[bytes]:
    """The JSON of `tree`, from which no piece takes more than some milliseconds to make."""
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
