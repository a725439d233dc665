"""The bodies of requests: typed, strict, and read straight from bytes.

Only the form is checked here: names, types, nothing unknown. What the values may be is `engine/admission/request.py`'s
business, for every front end alike.
"""

from __future__ import annotations

import base64
import binascii
import re
import types
from typing import Annotated, Any, Generic, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from belljar.contract.errors import InvalidExecution, NotAllowed
from belljar.contract.execution import Coverage, Execution
from belljar.contract.files import File
from belljar.contract.tools import ALL_TOOLS
from belljar.engine.admission.request import admit
from belljar.frontends.access.callers import Caller
from belljar.frontends.api.responses import Refusal

_T = TypeVar("_T")

_BASE64_SLICE = 512 * 1024  # characters, a multiple of 4

Positive = Annotated[float, Meta(gt=0)]


class LimitsBody(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """What one execution may use; what is left out is the server's default."""

    wall_seconds: Positive | None = None
    cpu_seconds: Positive | None = None
    memory_mb: Positive | None = None
    output_kb: Positive | None = None
    disk_mb: Positive | None = None
    processes: Annotated[int, Meta(gt=0)] | None = None


class FileBody(Struct, forbid_unknown_fields=True):
    """A file to put into the work directory."""

    path: str
    content: str = ""
    encoding: Literal["utf-8", "base64"] = "utf-8"


class CoverageBody(Struct, forbid_unknown_fields=True):
    """What to measure."""

    branch: bool = False


class RestrictBody(Struct, forbid_unknown_fields=True):
    """What restricted Python may do; what is left out is the server's default."""

    imports: list[str] | None = None
    max_print_length: int | None = None


class ExecuteBody(Struct, forbid_unknown_fields=True):
    """The body of POST /v1/execute."""

    code: Annotated[str, Meta(min_length=1)]
    language: str = "python"
    stdin: str = ""
    args: list[str] = []
    env: dict[str, str] = {}
    files: list[FileBody] = []
    artifacts: list[str] = []
    limits: LimitsBody | None = None
    timeout: Positive | None = None
    environment: str = "default"
    network: bool = False
    tools: bool | list[str] = False
    coverage: bool | CoverageBody = False
    restrict: RestrictBody | None = None


class CaseBody(Struct, forbid_unknown_fields=True):
    """One case of a batch: its own input, and what should come out."""

    stdin: str | UnsetType = UNSET
    expected_stdout: str | None = None
    args: list[str] | UnsetType = UNSET


Comparison = Literal["exact", "trimmed", "tokens"]


class BatchBody(Struct, forbid_unknown_fields=True):
    """The body of POST /v1/batch: `executions`, or a program with `cases`."""

    executions: list[ExecuteBody] | UnsetType = UNSET
    code: Annotated[str, Meta(min_length=1)] | UnsetType = UNSET
    language: str | UnsetType = UNSET
    stdin: str | UnsetType = UNSET
    args: list[str] | UnsetType = UNSET
    env: dict[str, str] | UnsetType = UNSET
    files: list[FileBody] | UnsetType = UNSET
    artifacts: list[str] | UnsetType = UNSET
    limits: LimitsBody | UnsetType | None = UNSET
    timeout: Positive | UnsetType | None = UNSET
    environment: str | UnsetType = UNSET
    network: bool | UnsetType = UNSET
    tools: bool | list[str] | UnsetType = UNSET
    coverage: bool | CoverageBody | UnsetType = UNSET
    restrict: RestrictBody | UnsetType | None = UNSET
    cases: list[CaseBody] | UnsetType = UNSET
    compare: Comparison | UnsetType = UNSET
    stop_on_failure: bool | UnsetType = UNSET


class BodyReader(Generic[_T]):
    """Turns bytes into one kind of body."""

    def __init__(self, kind: type[_T]) -> None:
        self._kind = kind
        self._decode = msgspec.json.Decoder(kind).decode

    def read(self, body: bytes) -> _T:
        """Raises Refusal: 400 if it is no JSON, 422 if it is not what is asked for."""
        try:
            return self._decode(body)
        except msgspec.ValidationError as error:
            _check_is_json(body)  # a body that is broken further on is broken, whatever comes first
            raise self._explain(str(error)) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise _not_json(error, body) from None

    def _explain(self, said: str) -> Refusal:
        problem, field = self._cut(said)
        where = field or "the body"
        unknown = re.fullmatch(r"Object contains unknown field `(.*)`", problem, re.DOTALL)
        missing = re.fullmatch(r"Object missing required field `(.*)`", problem)
        if unknown:
            known = ", ".join(_struct_at(self._kind, field).__struct_fields__)
            name = unknown[1] if len(unknown[1]) <= 80 else unknown[1][:80] + "…"
            inside = f" in {field}" if field else ""
            return _invalid(f"there is no field {name!r}{inside}; known are: {known}", _join(field, name))
        if missing:
            return _invalid(f"{_join(field, missing[1])} is missing; it is required", _join(field, missing[1]))
        return _invalid(f"{where}: {_in_json_words(problem)}", field or "$")

    def _cut(self, said: str) -> tuple[str, str]:
        """The problem and its place; a name in the body may look like a place, but like none that there is."""
        problem, _, place = said.rpartition(" - at `")
        field = place.removesuffix("`").removeprefix("$").removeprefix(".").replace("[...]", "")
        try:
            _struct_at(self._kind, field.rpartition(".")[0] if "unknown field" not in problem else field)
        except LookupError:
            return said, ""
        return (problem, field) if problem else (said, "")


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


_skim = msgspec.json.Decoder(Raw).decode


def _check_is_json(body: bytes) -> None:
    """Look a body through without building it: a small one can describe a huge tree."""
    try:
        _skim(body)
        body.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _not_json(error, body) from None


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


_LAST_HALF = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?=[^\\]{0,5}$)", re.DOTALL)
_TAIL_BYTES = 16


def _ends_with_half_a_character(body: bytes) -> bool:
    """Whether nothing else is wrong: the decoder looks for the other half past the end, and takes it for cut off."""
    tail = body[-_TAIL_BYTES:]
    mended = _LAST_HALF.sub(rb"\\ufffd", tail)
    try:
        return mended != tail and bool(_skim(body[:-_TAIL_BYTES] + mended))
    except (msgspec.DecodeError, RecursionError):
        return False


def admit_body(caller: Caller, asked: ExecuteBody) -> Execution:
    """What is asked, as the engine takes it.

    Raises:
        CallerError: it cannot be accepted, or this caller may not.
    """
    if asked.network:
        check_network(caller)
    return admit(
        caller.settings,
        asked.code,
        language=asked.language,
        stdin=asked.stdin,
        args=asked.args,
        env=asked.env,
        files=[as_file(number, each) for number, each in enumerate(asked.files)] if asked.files else None,
        artifacts=asked.artifacts,
        limits=as_given(asked.limits),
        timeout=asked.timeout,
        environment=asked.environment,
        network=asked.network,
        tools=wanted_tools(caller, asked.tools) if asked.tools else (),
        coverage=_as_coverage(asked.coverage) if asked.coverage else None,
        restrict=None if asked.restrict is None else _as_restriction(asked.restrict),
        caller=caller.name,
    )


def wanted_tools(caller: Caller, asked: bool | list[str]) -> tuple[str, ...]:
    """The tools that are asked for and that this caller may use; ALL_TOOLS for all there are.

    Raises:
        NotAllowed: the key may not use them.
    """
    if not asked:
        return ()
    allowed = caller.key.tools
    if not allowed:
        raise NotAllowed(f"key {caller.name!r} may not use tools; leave them out, or ask the operator", field="tools")
    if isinstance(allowed, bool):
        return (ALL_TOOLS,) if asked is True else tuple(asked)
    if asked is True:
        return tuple(allowed)
    for name in asked:
        if name not in allowed:
            may = ", ".join(allowed)
            raise NotAllowed(f"key {caller.name!r} may not use the tool {name[:80]!r}; it may: {may}", field="tools")
    return tuple(asked)


def as_given(limits: Struct | None) -> dict[str, float] | None:
    """The limits that are named."""
    if limits is None:
        return None
    values = ((name, getattr(limits, name)) for name in limits.__struct_fields__)
    return {name: value for name, value in values if value is not None}


def check_network(caller: Caller) -> None:
    """Raise NotAllowed unless this caller's programs may have a network, where there is one."""
    if not caller.key.network:
        raise NotAllowed(
            f"key {caller.name!r} may not use the network; leave it out, or ask the operator", field="network"
        )


def _as_restriction(given: RestrictBody) -> dict[str, Any]:
    return {"imports": given.imports, "max_print_length": given.max_print_length}


def _as_coverage(given: bool | CoverageBody) -> Coverage:
    return Coverage(branch=given.branch) if isinstance(given, CoverageBody) else Coverage()


def as_file(number: int, given: FileBody) -> File:
    """The file that is asked for. The content of a large one is UTF-8 already: see `large_bodies`.

    Raises:
        InvalidExecution: it is not encoded as it says.
    """
    content: str | bytes = given.content
    if given.encoding == "utf-8":
        return File(path=given.path, content=content if isinstance(content, bytes) else content.encode())
    try:
        return File(path=given.path, content=_decode_base64(content))
    except (binascii.Error, ValueError):
        field = f"files[{number}].content"
        raise InvalidExecution(f"{field} is not base64; encode it anew or use encoding 'utf-8'", field=field) from None


def _decode_base64(text: str | bytes) -> bytes:
    """In slices, between which others have their turn; only the last may be padded."""
    if len(text) <= _BASE64_SLICE:
        return base64.b64decode(text, validate=True)
    slices = (text[at : at + _BASE64_SLICE] for at in range(0, len(text), _BASE64_SLICE))
    parts = [base64.b64decode(each, validate=True) for each in slices]
    if any(len(part) != _BASE64_SLICE // 4 * 3 for part in parts[:-1]):
        raise ValueError("padding within")
    return b"".join(parts)


read_execute = BodyReader(ExecuteBody).read
read_batch = BodyReader(BatchBody).read
