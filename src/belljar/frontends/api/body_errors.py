"""Says what is wrong with a body that could not be decoded: the field, and what it should be."""

from __future__ import annotations

import re
import types
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Raw, Struct

from belljar.frontends.access.refusals import Refusal

_LAST_HALF = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?=[^\\]{0,5}$)", re.DOTALL)
_TAIL_BYTES = 16

_skim = msgspec.json.Decoder(Raw).decode


def explain(kind: type, error: Exception, body: bytes) -> Refusal:
    """The refusal of a body that is not a `kind`: 400 if it is not JSON, 422 otherwise."""
    if not isinstance(error, msgspec.ValidationError):
        return _not_json(error, body)
    try:  # a body that is broken further on is broken, whatever comes first
        _skim(body)  # without building it: a small body can describe a huge tree
        body.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as broken:
        return _not_json(broken, body)
    problem, field = _split(kind, str(error))
    where = field or "the body"
    unknown = re.fullmatch(r"Object contains unknown field `(.*)`", problem, re.DOTALL)
    missing = re.fullmatch(r"Object missing required field `(.*)`", problem)
    if unknown:
        known = ", ".join(_struct_at(kind, field).__struct_fields__)
        name = unknown[1] if len(unknown[1]) <= 80 else unknown[1][:80] + "…"
        inside = f" in {field}" if field else ""
        return _invalid(f"unknown field {name!r}{inside}; choose from {known}", _join(field, name))
    if missing:
        return _invalid(f"{_join(field, missing[1])} is missing; it is required", _join(field, missing[1]))
    return _invalid(f"{where}: {_in_json_words(problem)}", field or "$")


def _split(kind: type, message: str) -> tuple[str, str]:
    """The problem and its place; a name in the body may look like a place, but like none that the type has."""
    problem, _, place = message.rpartition(" - at `")
    field = place.removesuffix("`").removeprefix("$").removeprefix(".").replace("[...]", "")
    try:
        _struct_at(kind, field.rpartition(".")[0] if "unknown field" not in problem else field)
    except LookupError:
        return message, ""
    return (problem, field) if problem else (message, "")


def _struct_at(kind: Any, place: str) -> Any:
    """The struct at a place such as `files[0]` inside `kind`. Raises LookupError."""
    for name in re.findall(r"[^.\[\]]+", place):
        if not name.isdigit():
            kind = _struct_in(get_type_hints(kind)[name])
            if kind is None:
                raise LookupError(place)
    return kind


def _struct_in(hint: Any) -> Any:
    if isinstance(hint, type) and issubclass(hint, Struct):
        return hint
    if get_origin(hint) in (Union, types.UnionType, list, Annotated):
        return next((found for each in get_args(hint) if (found := _struct_in(each))), None)
    return None


def _in_json_words(problem: str) -> str:
    words = {"str": "string", "float": "number", "int": "whole number", "bool": "true or false"}
    text = re.sub(r"\b(str|float|int|bool)\b", lambda found: words[found[0]], problem).replace("`", "")
    return text[0].lower() + text[1:]


def _join(field: str, name: str) -> str:
    return f"{field}.{name}" if field else name


def _invalid(message: str, field: str) -> Refusal:
    return Refusal(422, "invalid_request", message, {"field": field})


def _not_json(error: Exception, body: bytes) -> Refusal:
    if isinstance(error, RecursionError):
        reason = "it is nested too deeply"
    elif isinstance(error, UnicodeDecodeError):
        reason = "it is not valid UTF-8"
    elif "surrogate" in str(error) or _ends_with_half_a_character(body):
        reason = "it has a lone surrogate, which is half of a character"
    else:
        reason = str(error).removeprefix("JSON is malformed: ")
        reason = reason[:1].lower() + reason[1:]
    return Refusal(400, "not_json", f"the body is not JSON: {reason}; send one JSON object in UTF-8")


def _ends_with_half_a_character(body: bytes) -> bool:
    """Whether nothing else is wrong: the decoder looks for the other half past the end, and takes it for cut off."""
    tail = body[-_TAIL_BYTES:]
    mended = _LAST_HALF.sub(rb"\\ufffd", tail)
    try:
        return mended != tail and bool(_skim(body[:-_TAIL_BYTES] + mended))
    except (msgspec.DecodeError, RecursionError):
        return False
