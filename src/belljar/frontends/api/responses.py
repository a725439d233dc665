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

    media_type = "application/json"

    def __init__(
        self, content: Any, status_code: int = 200, *, media_type: str | None = None, headers: Headers = ()
    ) -> None:
        body = content if isinstance(content, bytes) else encode_json(content)
        super().__init__(body, status_code, media_type=media_type)
        self.raw_headers += (NO_SNIFFING, *headers)


class NoContent(Response):
    """204."""

    def __init__(self) -> None:
        super().__init__(status_code=204)
        self.raw_headers.append(NO_SNIFFING)
