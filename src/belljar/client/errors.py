"""The two errors of the network between client and server; all others are the server's, in the contract's classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from belljar.contract import errors as contract
from belljar.contract.errors import BelljarError, CallerError, Overloaded, SandboxFault


class Unreachable(Overloaded):
    """The connection failed, so nothing was sent and no program ran."""

    code = "unreachable"


class AnswerLost(SandboxFault):
    """The request was sent but the answer is incomplete or missing: the program may have run, or may still run."""

    code = "answer_lost"


_CLASS_OF = {
    each.code: each
    for each in vars(contract).values()
    if isinstance(each, type) and issubclass(each, BelljarError) and each is not BelljarError
} | {"internal_error": SandboxFault}  # sent with 503, which alone would mean "later"


def build_error(
    status: int | None, code: str, message: str, details: Mapping[str, Any], retry_after_seconds: float | None
) -> BelljarError:
    """Build the contract's error for an answer: by its code, or by its status if the code is unknown.

    `status` is None for an error within an answer that began with 200.
    """
    kind = _CLASS_OF.get(code) or _class_of_status(status)
    error = kind.__new__(kind, message)
    BelljarError.__init__(error, message)  # the class's own may take other arguments, and compose another message
    error.details = dict(details) if status is None else {**details, "http_status": status}
    vars(error)["code"] = code or kind.code  # a server newer than this client may have codes without a class
    if isinstance(error, Overloaded):
        error.retry_after_seconds = 1.0 if retry_after_seconds is None else retry_after_seconds
    if isinstance(error, contract.JailSetupFailed):
        error.step = str(details.get("step", ""))
    return error


def _class_of_status(status: int | None) -> type[BelljarError]:
    if status is None:
        return SandboxFault
    if status in (429, 503):
        return Overloaded
    if status in (502, 504):  # from a proxy that had passed the request on
        return AnswerLost
    return CallerError if status < 500 else SandboxFault
