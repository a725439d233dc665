"""Sending whole answers over ASGI."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import msgspec

from belljar.frontends.access.refusals import Headers

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

JSON_TYPE = (b"content-type", b"application/json")
NO_SNIFFING = (b"x-content-type-options", b"nosniff")

encode_json = msgspec.json.Encoder(enc_hook=repr).encode


async def reply(
    send: Send, body: bytes, status: int = 200, content_type: tuple[bytes, bytes] = JSON_TYPE, headers: Headers = ()
) -> None:
    head = [content_type, (b"content-length", b"%d" % len(body)), NO_SNIFFING, *headers]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": body})


async def reply_nothing(send: Send) -> None:
    """Answer 204 No Content."""
    await send({"type": "http.response.start", "status": 204, "headers": [NO_SNIFFING]})
    await send({"type": "http.response.body", "body": b""})
