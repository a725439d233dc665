"""Request bodies and errors in the form of FastAPI, which several of the imitated systems use."""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

from belljar.frontends.access.refusals import Refusal
from belljar.frontends.api.request import decode
from belljar.frontends.api.responses import Answer

_T = TypeVar("_T")


def read_body(kind: type[_T], body: bytes) -> _T:
    """Decode a body as `kind`; unknown fields are ignored, and numbers may be quoted.

    Raises:
        Refusal: 422, with FastAPI's details.
    """
    try:
        return msgspec.json.decode(body, type=kind, strict=False)
    except msgspec.ValidationError as error:
        raise _invalid(str(error)) from None
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise unprocessable(
            [{"type": "json_invalid", "loc": ["body", 0], "msg": f"JSON decode error: {error}"}]
        ) from None


async def read_whole(kind: type[_T], body: bytes) -> _T:
    """Like `read_body`, for a body of any size."""
    return await decode(body, lambda text: read_body(kind, text), lambda decoded: decoded)


def unprocessable(detail: Any) -> Refusal:
    """422 with a list of problems, each with `loc`, `msg` and `type`."""
    return Refusal(422, "invalid_request", str(detail), {"detail": detail})


def _invalid(message: str) -> Refusal:
    problem, _, place = message.partition(" - at `")
    path = [each for each in re.split(r"[.\[\]$`]+", place) if each]
    missing = re.fullmatch(r"Object missing required field `(.*)`", problem)
    if missing:
        return unprocessable([{"type": "missing", "loc": ["body", *path, missing[1]], "msg": "Field required"}])
    return unprocessable([{"type": "value_error", "loc": ["body", *path], "msg": problem.replace("`", "")}])


def refuse(refusal: Refusal) -> Answer:
    """Every error as {"detail": …}."""
    return Answer({"detail": refusal.details.get("detail", refusal.message)}, refusal.status)
