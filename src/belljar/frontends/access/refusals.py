"""Refusals: every answer that is not 2xx, and the one table from Belljar's errors to HTTP status codes."""

from __future__ import annotations

import math
from typing import Any

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

Headers = tuple[tuple[bytes, bytes], ...]

_FAULT_SECONDS = 5.0  # when to retry after a fault of the server: long enough for a new zygote
_STATUS_OF = ((TooLarge, 413), (NotAllowed, 403), (NotFound, 404), (Conflict, 409), (CallerError, 422))


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
        """The body that the native API sends."""
        return {"error": {"code": self.code, "message": self.message, "details": self.details}}


def refusal_of(error: Exception) -> Refusal:
    """The refusal for an error. The reason for a fault of the server goes to the log, not to the caller."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, BelljarError):
        details = dict(error.details)
        for kind, status in _STATUS_OF:
            if isinstance(error, kind):
                return Refusal(status, error.code, error.message, details)
        if isinstance(error, Overloaded):
            status = 503 if isinstance(error, Draining) else 429
            return Refusal(status, error.code, error.message, details, retry_after(error.retry_after_seconds))
    return Refusal(
        503,
        error.code if isinstance(error, SandboxFault) else "internal_error",
        "the sandbox could not run this; it is not the program's fault. Try again; the operator's log has the reason",
        headers=retry_after(_FAULT_SECONDS),
    )


def is_fault(error: Exception, refusal: Refusal) -> bool:
    """Whether the server, not the caller, caused an error."""
    return refusal.code == "internal_error" or isinstance(error, SandboxFault)


def unauthorized(message: str, key: str) -> Refusal:
    """The refusal for a key that is "missing" or "unknown"."""
    return Refusal(
        401, "unauthorized", message, {"key": key}, headers=((b"www-authenticate", b'Bearer realm="belljar"'),)
    )


def retry_after(seconds: float) -> Headers:
    """The header that says when to retry, in whole seconds."""
    return ((b"retry-after", str(max(1, math.ceil(seconds))).encode()),)
