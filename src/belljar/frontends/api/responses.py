"""How requests are answered: JSON, and the one table from what went wrong to what HTTP calls it."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import msgspec

from belljar.contract.errors import (
    BelljarError,
    CallerError,
    Conflict,
    Draining,
    NotAllowed,
    NotFound,
    Overloaded,
    SandboxFault,
    TooLarge,
)

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = tuple[tuple[bytes, bytes], ...]

JSON_TYPE = (b"content-type", b"application/json")
NO_SNIFFING = (b"x-content-type-options", b"nosniff")

_RETRY_SECONDS = 5.0  # after a fault of ours: long enough for a new zygote

encode_json = msgspec.json.Encoder(enc_hook=repr).encode


class Refusal(Exception):
    """An answer that is not 2xx."""

    def __init__(
        self, status: int, code: str, message: str, details: dict[str, Any] | None = None, headers: Headers = ()
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.details = details or {}
        self.headers = headers

    def as_json(self) -> dict[str, Any]:
        """The body of every answer that is not 2xx."""
        return {"error": {"code": self.code, "message": self.message, "details": self.details}}


def refusal_of(error: Exception) -> Refusal:
    """What HTTP calls an error. What we broke ourselves is told to the log, not to the caller."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, BelljarError):
        details = dict(error.details)
        if isinstance(error, TooLarge):
            return Refusal(413, error.code, error.message, details)
        if isinstance(error, NotAllowed):
            return Refusal(403, error.code, error.message, details)
        if isinstance(error, NotFound):
            return Refusal(404, error.code, error.message, details)
        if isinstance(error, Conflict):
            return Refusal(409, error.code, error.message, details)
        if isinstance(error, CallerError):
            return Refusal(422, error.code, error.message, details)
        if isinstance(error, Overloaded):
            status = 503 if isinstance(error, Draining) else 429
            return Refusal(status, error.code, error.message, details, retry_after(error.retry_after_seconds))
    code = error.code if isinstance(error, SandboxFault) else "internal_error"
    return Refusal(
        503,
        code,
        "the sandbox could not run this; it is not the program's fault. Try again; the operator's log has the reason",
        headers=retry_after(_RETRY_SECONDS),
    )


def retry_after(seconds: float) -> Headers:
    """When to come back; the header knows whole seconds only."""
    return ((b"retry-after", str(max(1, math.ceil(seconds))).encode()),)


async def reply(
    send: Send, body: bytes, status: int = 200, content_type: tuple[bytes, bytes] = JSON_TYPE, headers: Headers = ()
) -> None:
    """Send a whole answer."""
    head = [content_type, (b"content-length", b"%d" % len(body)), NO_SNIFFING, *headers]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": body})


async def reply_nothing(send: Send) -> None:
    """204: done, and there is nothing to say about it."""
    await send({"type": "http.response.start", "status": 204, "headers": [NO_SNIFFING]})
    await send({"type": "http.response.body", "body": b""})
