"""How services made with FastAPI read bodies and say what is wrong: several of the systems we stand in for are."""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

from belljar.frontends.api.large_bodies import decode
from belljar.frontends.api.responses import Refusal, encode_json
from belljar.frontends.api.routing import Answer

_T = TypeVar("_T")


def read_body(kind: type[_T], body: bytes) -> _T:
    """The body as `kind`; unknown fields are ignored, and numbers in quotes are numbers.

    Raises:
        Refusal: 422, in their words.
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
    """As `read_body`, of any size."""
    return await decode(body, lambda text: read_body(kind, text), lambda asked: asked)


def unprocessable(detail: Any) -> Refusal:
    """422 with a list of problems, each with `loc`, `msg` and `type`."""
    return Refusal(422, "invalid_request", str(detail), {"detail": detail})


def _invalid(said: str) -> Refusal:
    problem, _, place = said.partition(" - at `")
    path = [each for each in re.split(r"[.\[\]$`]+", place) if each]
    missing = re.fullmatch(r"Object missing required field `(.*)`", problem)
    if missing:
        return unprocessable([{"type": "missing", "loc": ["body", *path, missing[1]], "msg": "Field required"}])
    return unprocessable([{"type": "value_error", "loc": ["body", *path], "msg": problem.replace("`", "")}])


def refuse(refusal: Refusal) -> Answer:
    """Whatever went wrong, as {"detail": …}."""
    return Answer(encode_json({"detail": refusal.details.get("detail", refusal.message)}))
