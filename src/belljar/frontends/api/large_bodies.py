"""Request bodies that are too large to be decoded at once.

Decoding holds the interpreter lock and so blocks every other request: for seconds if the body is full of one-letter
arguments, for a third of a second if it is one long text. So a thread scans a large body first, one slice at a time:
the long texts are taken out, decoded in slices and put back afterwards; the rest, the outline, must be small and hold a
bounded number of values.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import msgspec

from belljar.frontends.access.refusals import Refusal

AT_ONCE_BYTES = 1024 * 1024  # decoded at once: 35 ms at worst
VALUES_MAX = 250_000  # texts, lists and objects in a larger body
OUTLINE_BYTES_MAX = 8 * 1024 * 1024  # of such a body without its long texts
_LONG = 256  # bytes of a text that is taken out
_TEXT_BYTES_MAX = 16 * 1024 * 1024  # of one text that is neither a file nor standard input
_SLICE = 256 * 1024
_QUOTES = 64  # checked one by one
_BACKSLASH = ord("\\")
_MARK = os.urandom(16).hex()  # replaces a text that was taken out; never leaves the server
_BINARY = ("content", "stdin")  # fields that are bytes in the end

_threads = ThreadPoolExecutor(2, thread_name_prefix="belljar-bodies")
_read_text = msgspec.json.Decoder(str).decode

_T = TypeVar("_T")
_U = TypeVar("_U")


async def decode(body: bytes, read: Callable[[bytes], _T], use: Callable[[_T], _U]) -> _U:
    """Return `use(read(body))`, called in a thread.

    Raises:
        Refusal: 413 if the body holds too many values, 400 if it is not JSON; and whatever `read` and `use` raise.
    """
    return await asyncio.get_running_loop().run_in_executor(_threads, lambda: use(_decode(body, read)))


async def check(body: bytes) -> None:
    """Refuse a large body that would take too long to decode; for bodies that a library decodes.

    Raises:
        Refusal: 413 if the body holds too many values, 400 if it is not JSON.
    """
    await asyncio.get_running_loop().run_in_executor(_threads, _outline, body)


def _decode(body: bytes, read: Callable[[bytes], _T]) -> _T:
    if len(body) <= AT_ONCE_BYTES:
        return read(body)
    outline, places = _outline(body)
    try:
        tree = read(outline)
    except Refusal as refusal:
        refusal.message = refusal.message.replace(_MARK, "…")
        raise
    taken = [_decode_text(body, start, end) for start, end in places]
    return _restore(tree, taken)  # type: ignore[no-any-return]


def _outline(body: bytes) -> tuple[bytes, list[tuple[int, int]]]:
    """A body without its long texts, and the positions of these."""
    pieces: list[bytes] = []
    places: list[tuple[int, int]] = []
    values = size = begin = at = 0
    while (start := body.find(b'"', at)) >= 0:
        between = start - at
        if between > OUTLINE_BYTES_MAX:
            break
        values += 1 + (
            max(0, between - 2) if between < 8 else sum(body.count(each, at, start) for each in (b",", b"[", b"{"))
        )
        end = _end_of_text(body, start + 1)
        if end - start > _LONG:
            pieces += (body[begin:start], b'"%b%d"' % (_MARK.encode(), len(places)))
            size += start - begin
            places.append((start + 1, end))
            begin = end + 1
        at = end + 1
        if values > VALUES_MAX or size + at - begin > OUTLINE_BYTES_MAX:
            raise _too_many(values)
    if size + len(body) - begin > OUTLINE_BYTES_MAX:
        raise _too_many(values)
    values += sum(body.count(each, at) for each in (b",", b"[", b"{"))
    if values > VALUES_MAX:
        raise _too_many(values)
    pieces.append(body[begin:])
    return b"".join(pieces), places


def _too_many(values: int) -> Refusal:
    if values > VALUES_MAX:
        what = f"holds more than {VALUES_MAX:,} texts, lists and objects"
    else:
        what = f"has more than {OUTLINE_BYTES_MAX:,} bytes in addition to its texts of over {_LONG} bytes"
    return Refusal(413, "too_large", f"the body {what}, the limit for one request; send less, or several requests")


def _end_of_text(body: bytes, at: int) -> int:
    """The position of the quote that ends the text which begins at `at`."""
    quote = at - 1
    for _ in range(_QUOTES):
        quote = body.find(b'"', quote + 1)
        if quote < 0:
            raise _no_end()
        if not _is_escaped(body, at, quote):
            return quote
    at = quote + 1
    while at < len(body):  # many quotes: all those of a slice at once
        piece = body[at : at + _SLICE].replace(b"\\\\", b"__").replace(b'\\"', b"__")
        found = piece.find(b'"')
        if found >= 0:
            return at + found
        at += len(piece) - (len(piece) > 1 and piece.endswith(b"\\"))  # which belongs to the next slice
    raise _no_end()


def _is_escaped(body: bytes, start: int, at: int) -> bool:
    """Whether an odd number of backslashes precedes `at`, in a text that begins at `start`."""
    run, size = 0, 64
    while at - run > start and body[at - run - 1] == _BACKSLASH:
        before = body[max(start, at - run - size) : at - run]
        run += len(before) - len(before.rstrip(b"\\"))
        size = _SLICE // 4
    return run % 2 == 1


def _no_end() -> Refusal:
    return Refusal(400, "not_json", "the body is not JSON: a text has no end; send one JSON object in UTF-8")


def _decode_text(body: bytes, at: int, end: int) -> bytes:
    parts: list[bytes] = []
    try:
        while at < end:
            cut = min(at + _SLICE, end)
            if cut < end:
                cut = _cut_before(body, at, cut)
            parts.append(_read_text(b'"' + body[at:cut] + b'"').encode())
            at = cut
    except (msgspec.DecodeError, UnicodeError) as error:
        reason = str(error).removeprefix("JSON is malformed: ").partition(" (byte ")[0]
        message = f"the body is not JSON: a text in it cannot be decoded, {reason}; send one JSON object in UTF-8"
        raise Refusal(400, "not_json", message) from None
    return b"".join(parts)


def _cut_before(body: bytes, at: int, cut: int) -> int:
    """The last position up to `cut` that splits neither a character nor an escape or a pair of escapes."""
    if _is_escaped(body, at, cut):
        cut -= 1
    escape = body.rfind(b"\\u", max(at, cut - 5), cut)
    if escape >= 0 and not _is_escaped(body, at, escape):
        cut = escape
    last = body[max(at, cut - 6) : cut].lower()
    if last[:3] == b"\\ud" and last[3:4] in (b"8", b"9", b"a", b"b") and not _is_escaped(body, at, cut - 6):
        cut -= 6  # the first half of a character
    while body[cut] & 0xC0 == 0x80:
        cut -= 1
    return cut


def _restore(value: Any, taken: list[bytes], field: str = "") -> Any:
    """`value` with the texts put back that were taken out: as bytes in fields that become bytes, else as text."""
    if isinstance(value, str):
        return _text_at(value, taken, field) if value.startswith(_MARK) else value
    if isinstance(value, list):
        return [_restore(each, taken) for each in value]
    if isinstance(value, dict):
        return {_restore(name, taken): _restore(each, taken) for name, each in value.items()}
    if isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            before = getattr(value, name)
            if isinstance(before, (str, list, dict, msgspec.Struct)):
                setattr(value, name, _restore(before, taken, name))
    return value


def _text_at(mark: str, taken: list[bytes], field: str) -> str | bytes:
    text = taken[int(mark.removeprefix(_MARK))]
    if field in _BINARY:
        return text
    if len(text) > _TEXT_BYTES_MAX:
        message = f"a text of {len(text):,} bytes is more than the limit of {_TEXT_BYTES_MAX:,}; put data into files"
        raise Refusal(413, "too_large", message, {"field": field or "$", "max": _TEXT_BYTES_MAX})
    return text.decode()
