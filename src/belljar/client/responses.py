"""Reads answers into contract types.

The server is not hostile, but an answer may come from anything in between: a proxy's error page, a connection that
breaks in the middle of a line, a different server. All of these raise one error that says so. Unknown fields and
events are ignored: the server may be newer than this client.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import functools
import json
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from belljar.client.errors import AnswerLost, build_error
from belljar.client.results import Batch, Environment, Health, Language, Result, Server, Wall
from belljar.client.retries import Refused, read_retry_after
from belljar.contract.errors import BelljarError, EnvironmentBroken, JailSetupFailed, Overloaded, WallMissing
from belljar.contract.execution import (
    Compilation,
    Display,
    Event,
    Finished,
    Limits,
    Outcome,
    Output,
    Started,
    Status,
    ToolAnswered,
    ToolCall,
    ToolCalled,
)
from belljar.contract.files import File
from belljar.contract.sessions import SessionState, WorkFile

_T = TypeVar("_T")

_QUOTED_CHARACTERS_MAX = 200
# Faults after which the program surely did not run. Others come with 503 too: a zygote may die while a program runs.
_BEFORE_THE_PROGRAM = (Overloaded, WallMissing, JailSetupFailed, EnvironmentBroken)


def read_refusal(status: int, headers: Mapping[str, str], content: bytes, *, runs_code: bool) -> Refused:
    """Read the error of an answer, and whether the request may be sent again."""
    retry_after_seconds = read_retry_after(headers)
    error = _read_error(status, headers, content, retry_after_seconds)
    is_early = isinstance(error, _BEFORE_THE_PROGRAM) or not runs_code
    return Refused(error, may_send_again=status in (429, 503) and is_early, retry_after_seconds=retry_after_seconds)


def _read_error(
    status: int, headers: Mapping[str, str], content: bytes, retry_after_seconds: float | None
) -> BelljarError:
    try:
        body = json.loads(content)["error"]
        code, message, details = body["code"], body["message"], body.get("details") or {}
        if isinstance(code, str) and isinstance(message, str) and isinstance(details, dict):
            return build_error(status, code, message, details, retry_after_seconds)
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError):
        pass
    where = f" to {headers['location']}" if 300 <= status < 400 and "location" in headers else ""
    message = f"the server answered {status}{where}, but not as Belljar's API does; is the URL right? The answer: "
    return build_error(status, "", message + _quote(content), {}, retry_after_seconds)


@contextlib.contextmanager
def _reading(content: object) -> Iterator[None]:
    try:
        yield
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RecursionError) as error:
        raise AnswerLost(
            "the answer is not one of Belljar's API; is the URL right, and the server's version not older than this "
            f"client's? The answer: {_quote(content)}"
        ) from error


def _quote(content: object) -> str:
    text = content.decode("utf-8", "replace") if isinstance(content, bytes) else str(content)
    return repr(text[:_QUOTED_CHARACTERS_MAX] + ("…" if len(text) > _QUOTED_CHARACTERS_MAX else ""))


# ---- whole answers


def read_nothing(content: bytes) -> None:
    """For answers without a body (204)."""


def _json_reader(read: Callable[[Any], _T]) -> Callable[[bytes], _T]:
    def read_json(content: bytes) -> _T:
        with _reading(content):
            return read(json.loads(content))

    return read_json


def _read_environment(body: Mapping[str, Any]) -> Environment:
    packages = {_text(each["name"]): _text(each["version"]) for each in body["packages"]}
    return _build(Environment, body, packages=packages)


def _read_server(body: Mapping[str, Any]) -> Server:
    return _build(
        Server,
        body,
        isolation={
            _text(name): _build(Wall, wall, detail=_text(wall.get("detail") or ""))
            for name, wall in body["isolation"].items()
        },
        default_limits=Limits.from_json(body["limits"]["default"]),
        ceiling_limits=Limits.from_json(body["limits"]["ceiling"]),
    )


def _read_health(body: Mapping[str, Any]) -> Health:
    error = body.get("error") or {}
    status = _text(body.get("status") or error.get("code") or "unavailable")
    return Health(ok=status == "ok", status=status, details={**body, **error})


def _read_work_file(body: Mapping[str, Any]) -> WorkFile:
    return _build(WorkFile, body, size_bytes=int(body["bytes"]), modified_at=_read_time(body["modified_at"]))


# ---- streams


class _Reader:
    """Reads a stream of JSON lines, which ends with a last event or an error."""

    def __init__(self) -> None:
        self._line: list[bytes] = []  # the pieces of an incomplete line
        self.is_finished = False

    def read_objects(self, chunk: bytes) -> Iterator[dict[str, Any]]:
        """Yield the objects whose lines end in this chunk.

        Raises:
            BelljarError: the server ends the stream with an error.
        """
        first, *others = chunk.split(b"\n")  # only newlines: JSON text may contain every other line separator
        self._line.append(first)
        for piece in others:
            line = b"".join(self._line)
            self._line = [piece]
            if self.is_finished or not line or line.isspace():
                continue
            with _reading(line):
                body = _mapping(json.loads(line))
                error = _read_error_object(body["error"]) if body.get("event") == "error" else None
            if error is not None:
                raise error
            yield body

    @contextlib.contextmanager
    def to_the_end(self) -> Iterator[None]:
        """Read the whole answer in this block; a connection that breaks after the last event does not matter.

        Raises:
            AnswerLost: the stream ended before its last event.
        """
        try:
            yield
        except AnswerLost:
            if not self.is_finished:
                raise
        if not self.is_finished:
            raise AnswerLost("the stream ended before its program did; whether the program finished is unknown")


class EventReader(_Reader):
    """Reads the events of an NDJSON answer, and adds to the last one the output and displays of those before."""

    def __init__(self) -> None:
        super().__init__()
        self._texts: dict[str, list[str]] = {"stdout": [], "stderr": []}
        self._displays: list[Display] = []

    def feed(self, chunk: bytes) -> Iterator[Event]:
        """Yield the events that this chunk completes. Raises BelljarError if one is an error."""
        for body in self.read_objects(chunk):
            with _reading(body):
                event = self._read(body)
            if event is not None:
                yield event

    def _read(self, body: Mapping[str, Any]) -> Event | None:
        kind = body["event"]
        if kind in self._texts:
            self._texts[kind].append(_text(body["text"]))
            return Output(stream=kind, text=body["text"])
        if kind == "display":
            self._displays.append(_read_display(body))
            return self._displays[-1]
        if kind == "started":
            return _build(Started, body)
        if kind == "tool_call":
            return ToolCalled(
                number=int(body["number"]), tool=_text(body["tool"]), arguments=_mapping(body["arguments"])
            )
        if kind == "tool_result":
            return ToolAnswered(number=int(body["number"]), call=_build(ToolCall, body), result=body["result"])
        if kind == "finished":
            texts = {stream: "".join(parts) for stream, parts in self._texts.items()}
            outcome = _read_outcome({**body, **texts}, displays=tuple(self._displays))
            self.is_finished = True
            return Finished(outcome=outcome)
        return None


class BatchReader(_Reader):
    """Reads the results of a batch, which arrive as they finish, into the order of the request."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        super().__init__()
        self._count = len(request["cases"] if "cases" in request else request["executions"])
        self._results: dict[int, Result] = {}
        self._counts = (0, 0)

    def feed(self, chunk: bytes) -> None:
        """Read the results that this chunk completes. Raises BelljarError if one is an error."""
        for body in self.read_objects(chunk):
            with _reading(body):
                if body["event"] == "result":
                    self._results[int(body["index"])] = _read_result(body)
                elif body["event"] == "finished":
                    self._counts = int(body["passed"]), int(body["failed"])
                    self.is_finished = True

    def batch(self) -> Batch:
        """Return the whole batch.

        Raises:
            AnswerLost: results are missing.
        """
        if sorted(self._results) != list(range(self._count)):
            raise AnswerLost("some results of the batch are missing; whether their programs ran is unknown")
        passed, failed = self._counts
        return Batch(results=tuple(self._results[at] for at in range(self._count)), passed=passed, failed=failed)


# ---- the parts


def _build(kind: Callable[..., _T], body: Mapping[str, Any], **parts: Any) -> _T:
    """Build a dataclass from the fields of the same names; `parts` are those that the wire has in another form.

    A field may be missing if its default is None or an empty tuple.
    """
    for name, read, is_optional in _fields(kind):
        if name in parts:
            continue
        value = body.get(name) if is_optional else body[name]
        if value is not None or not is_optional:
            parts[name] = read(value)
    return kind(**parts)


@functools.cache
def _fields(kind: Any) -> list[tuple[str, Callable[[Any], Any], bool]]:
    hints = get_type_hints(kind)
    return [(each.name, _reader_of(hints[each.name]), each.default in (None, ())) for each in dataclasses.fields(kind)]


def _reader_of(hint: Any) -> Callable[[Any], Any]:
    """How to read a JSON value of this type."""
    if hint in _READERS:
        return _READERS[hint]
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return functools.partial(_build, hint)
    inner = [_reader_of(each) for each in get_args(hint) if each not in (NoneType, ...)]
    if get_origin(hint) is UnionType and len(inner) == 1:
        return lambda value: None if value is None else inner[0](value)
    if get_origin(hint) is tuple and ... in get_args(hint):
        return lambda value: tuple(map(inner[0], value))
    if get_origin(hint) is tuple:
        return lambda value: tuple(read(each) for read, each in zip(inner, value, strict=True))
    return lambda value: value


def _read_outcome(body: Mapping[str, Any], **parts: Any) -> Outcome:
    truncated, compilation = body["truncated"], body.get("compile")
    return _build(
        Outcome,
        body,
        stdout_cut=bool(truncated["stdout"]),
        stderr_cut=bool(truncated["stderr"]),
        compilation=None
        if compilation is None
        else _build(Compilation, compilation, was_cached=bool(compilation["cached"])),
        **parts,
    )


def _read_result(body: Mapping[str, Any]) -> Result:
    """One result of a batch: an outcome and its verdict, or why there is none."""
    outcome = _read_outcome(body) if "status" in body else None
    error = _read_error_object(body["error"]) if outcome is None and body.get("error") else None
    return _build(Result, body, outcome=outcome, error=error)


def _read_error_object(body: Mapping[str, Any]) -> BelljarError:
    """An error within an answer whose status is 200."""
    return build_error(None, _text(body["code"]), _text(body["message"]), dict(body.get("details") or {}), None)


def _read_display(body: Mapping[str, Any]) -> Display:
    content = _text(body["data"])
    display = _build(Display, body, content=content.encode(), is_result=bool(body.get("result")))
    if display.is_text:
        return display
    return dataclasses.replace(display, content=base64.b64decode(content, validate=True))


def _read_file(body: Mapping[str, Any]) -> File:
    content = _text(body["content"])
    is_text = body.get("encoding", "base64") == "utf-8"
    return _build(File, body, content=content.encode() if is_text else base64.b64decode(content, validate=True))


def _read_session(body: Mapping[str, Any]) -> SessionState:
    times = {name: _read_time(body[name]) for name in ("created_at", "last_used_at", "expires_at")}
    return _build(SessionState, body, is_busy=body["state"] == "busy", **times)


def _read_time(value: object) -> float:
    return datetime.fromisoformat(_text(value)).timestamp()


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"a string was expected, not {type(value).__name__}")
    return value


def _mapping(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"an object was expected, not {type(value).__name__}")
    return value


# Types that are not read by `_build` alone.
_READERS: dict[Any, Callable[[Any], Any]] = {
    str: _text,
    int: int,
    float: float,
    bool: bool,
    Status: Status,
    Limits: Limits.from_json,
    Display: _read_display,
    File: _read_file,
}

read_outcome = _json_reader(_read_outcome)
read_session = _json_reader(_read_session)
read_sessions = _json_reader(lambda body: [_read_session(each) for each in body["sessions"]])
read_interrupted = _json_reader(lambda body: bool(body["interrupted"]))
read_work_files = _json_reader(lambda body: [_read_work_file(each) for each in body["files"]])
read_languages = _json_reader(lambda body: [_build(Language, each) for each in body["languages"]])
read_environments = _json_reader(lambda body: [_read_environment(each) for each in body["environments"]])
read_server = _json_reader(_read_server)
read_health = _json_reader(_read_health)
