"""The two errors that only a network makes. All others are the server's, in the contract's classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from belljar.contract import errors as contract
from belljar.contract.errors import BelljarError, CallerError, Overloaded, SandboxFault


class Unreachable(Overloaded):
    """No connection came about, so nothing was sent and no program ran."""

    code = "unreachable"


class AnswerLost(SandboxFault):
    """The request was sent and no whole answer came back: the program may have run, or may still run."""

    code = "answer_lost"


_CLASS_OF = {
    each.code: each
    for each in vars(contract).values()
    if isinstance(each, type) and issubclass(each, BelljarError) and each is not BelljarError
} | {"internal_error": SandboxFault}  # sent with 503, which alone would mean "later"


def build_error(
    status: int | None, code: str, message: str, details: Mapping[str, Any], retry_after_seconds: float | None
) -> BelljarError:
    """The contract's error for what the server said: by its code, or by its status when the code is news to us.

    Without a status it was told in the middle of a good answer, after a program had begun.
    """
    kind = _CLASS_OF.get(code) or _class_of_status(status)
    error = kind.__new__(kind, message)
    BelljarError.__init__(error, message)  # the class's own may want other arguments, and compose another message
    error.details = dict(details) if status is None else {**details, "http_status": status}
    vars(error)["code"] = code or kind.code  # a server newer than this client has words that no class has yet
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
    if status in (502, 504):  # a proxy's words: it passed the request on, and then lost sight of it
        return AnswerLost
    return CallerError if status < 500 else SandboxFault
