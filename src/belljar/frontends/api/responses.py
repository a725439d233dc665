"""Whole answers, as Starlette responses; `request.py` sends those that are too large for one piece, and streams."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response

from belljar.frontends.access.refusals import Headers

JSON_TYPE = (b"content-type", b"application/json")
NO_SNIFFING = (b"x-content-type-options", b"nosniff")

encode_json = msgspec.json.Encoder(enc_hook=repr).encode


class Answer(Response):
    """An answer whose content is bytes, or a value to be sent as JSON."""

    def __init__(
        self, content: Any, status_code: int = 200, *, media_type: str | None = None, headers: Headers = ()
    ) -> None:
        # Without `super().__init__`, which encodes every header of every answer: 20 µs when caches are cold.
        self.status_code = status_code
        self.background = None
        self.body = content if isinstance(content, bytes) else encode_json(content)
        kind = JSON_TYPE if media_type is None else (b"content-type", media_type.encode("latin-1"))
        self.raw_headers = [kind, (b"content-length", b"%d" % len(self.body)), NO_SNIFFING, *headers]


class NoContent(Response):
    """204."""

    def __init__(self) -> None:
        super().__init__(status_code=204)
        self.raw_headers.append(NO_SNIFFING)
