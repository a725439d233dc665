"""What comes back, as contract types.

The server is not hostile, but what stands between may be anything: a proxy's error page, a connection that breaks in
the middle of a line, a server of another make. All of that is one error that says so. Fields and events this client
does not know yet are passed over: a server may be newer.
"""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from belljar.client.errors import AnswerLost, build_error
from belljar.client.results import Batch, Environment, Health, Language, Result, Server, Wall
from belljar.client.retries import Refused, read_retry_after
from belljar.contract.errors import BelljarError, EnvironmentBroken, JailSetupFailed, Overloaded, WallMissing
from belljar.contract.execution import (
    Compilation,
    CoverageReport,
    Display,
    Event,
    FileCoverage,
    Finished,
    Limits,
    NetworkUse,
    Outcome,
    Output,
    ProgramError,
    Started,
    Status,
    ToolAnswered,
    ToolCall,
    ToolCalled,
    Usage,
)
from belljar.contract.files import File
from belljar.contract.sessions import SessionState, WorkFile

_QUOTED_CHARACTERS_MAX = 200
# Faults that leave no doubt that the program never ran. The others are told with 503 as well: a zygote may die beneath
# a program that has done half its work.
_BEFORE_THE_PROGRAM = (Overloaded, WallMissing, JailSetupFailed, EnvironmentBroken)


def read_refusal(status: int, headers: Mapping[str, str], content: bytes, *, runs_code: bool) -> Refused:
    """The error an answer stands for, and whether the same request may be sent again."""
    retry_after_seconds = read_retry_after(headers)
    error = _read_error(status, headers, content, retry_after_seconds)
    is_early = isinstance(error, _BEFORE_THE_PROGRAM) or not runs_code
    return Refused(error, may_send_again=status in (429, 503) and is_early, retry_after_seconds=retry_after_seconds)


def _read_error(
    status: int, headers: Mapping[str, str], content: bytes, retry_after_seconds: float | None
) -> BelljarError:
    try:
        told = json.loads(content)["error"]
        code, message, details = told["code"], told["message"], told.get("details") or {}
        if isinstance(code, str) and isinstance(message, str) and isinstance(details, dict):
            return build_error(status, code, message, details, retry_after_seconds)
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError):
        pass
    where = f" to {headers['location']}" if 300 <= status < 400 and "location" in headers else ""
    message = f"the server answered {status}{where} with something else than Belljar's API; is the URL right? It said: "
    return build_error(status, "", message + _quote(content), {}, retry_after_seconds)


@contextlib.contextmanager
def _reading(content: object) -> Iterator[None]:
    try:
        yield
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RecursionError) as error:
        raise AnswerLost(
            "the server answered with something else than Belljar's API; is the URL right, and is its version not "
            f"older than this client's? It said: {_quote(content)}"
        ) from error


def _quote(content: object) -> str:
    text = content.decode("utf-8", "replace") if isinstance(content, bytes) else str(content)
    return repr(text[:_QUOTED_CHARACTERS_MAX] + ("…" if len(text) > _QUOTED_CHARACTERS_MAX else ""))


# ---- whole answers


def read_outcome(content: bytes) -> Outcome:
    """Of POST /v1/execute."""
    with _reading(content):
        return _outcome(json.loads(content))


def read_session(content: bytes) -> SessionState:
    """Of POST /v1/sessions and GET /v1/sessions/{id}."""
    with _reading(content):
        return _session(json.loads(content))


def read_sessions(content: bytes) -> list[SessionState]:
    """Of GET /v1/sessions and POST /v1/sessions/{id}/branch."""
    with _reading(content):
        return [_session(each) for each in json.loads(content)["sessions"]]


def read_interrupted(content: bytes) -> bool:
    """Of POST /v1/sessions/{id}/interrupt."""
    with _reading(content):
        return bool(json.loads(content)["interrupted"])


def read_work_files(content: bytes) -> list[WorkFile]:
    """Of GET /v1/sessions/{id}/files."""
    with _reading(content):
        return [
            WorkFile(path=_text(each["path"]), size_bytes=int(each["bytes"]), modified_at=_seconds(each["modified_at"]))
            for each in json.loads(content)["files"]
        ]


def read_nothing(content: bytes) -> None:
    """Of what is answered with 204."""


def read_languages(content: bytes) -> list[Language]:
    """Of GET /v1/languages."""
    with _reading(content):
        return [
            Language(
                name=_text(each["name"]),
                title=_text(each["title"]),
                aliases=tuple(map(_text, each["aliases"])),
                available=bool(each["available"]),
                version=_text_or_none(each.get("version")),
                install=_text_or_none(each.get("install")),
            )
            for each in json.loads(content)["languages"]
        ]


def read_environments(content: bytes) -> list[Environment]:
    """Of GET /v1/environments."""
    with _reading(content):
        return [
            Environment(
                name=_text(each["name"]),
                python=_text(each["python"]),
                packages={_text(package["name"]): _text(package["version"]) for package in each["packages"]},
                warm=bool(each["warm"]),
            )
            for each in json.loads(content)["environments"]
        ]


def read_server(content: bytes) -> Server:
    """Of GET /v1/info."""
    with _reading(content):
        body = json.loads(content)
        return Server(
            version=_text(body["version"]),
            backend=_text(body["backend"]),
            isolation={
                _text(name): Wall(state=_text(wall["state"]), detail=_text(wall.get("detail") or ""))
                for name, wall in body["isolation"].items()
            },
            default_limits=Limits.from_json(body["limits"]["default"]),
            ceiling_limits=Limits.from_json(body["limits"]["ceiling"]),
        )


def read_health(content: bytes) -> Health:
    """Of GET /health, well or not."""
    with _reading(content):
        body = json.loads(content)
        told = body.get("error") or {}
        word = _text(body.get("status") or told.get("code") or "unavailable")
        return Health(ok=word == "ok", status=word, details={**body, **told})


# ---- streams


class EventLines:
    """Cuts what arrives into lines of JSON. Only at a newline: JSON text may hold every other line separator."""

    def __init__(self) -> None:
        self._open: list[bytes] = []  # pieces of a line that has not ended

    def feed(self, chunk: bytes) -> Iterator[dict[str, Any]]:
        """Yield the objects whose lines end in this chunk."""
        first, *others = chunk.split(b"\n")
        self._open.append(first)
        for piece in others:
            line = b"".join(self._open)
            self._open = [piece]
            if not line or line.isspace():
                continue
            with _reading(line):
                told = json.loads(line)
                if not isinstance(told, dict):
                    raise TypeError("not an object")
            yield told


class _Reader:
    """What all streams have in common: an end, good or bad."""

    def __init__(self) -> None:
        self._lines = EventLines()
        self.is_finished = False

    def send(self, chunk: bytes) -> Iterator[dict[str, Any]]:
        """Yield what this chunk completes.

        Raises:
            BelljarError: the server ends the stream with an error.
        """
        for told in self._lines.feed(chunk):
            if self.is_finished:
                return
            if told.get("event") == "error":
                with _reading(told):
                    error = _error(told["error"])
                raise error
            yield told

    @contextlib.contextmanager
    def to_the_end(self) -> Iterator[None]:
        """Read the whole answer in this; what breaks after its last line is no loss.

        Raises:
            AnswerLost: it ended too early.
        """
        try:
            yield
        except AnswerLost:
            if not self.is_finished:
                raise
        if not self.is_finished:
            raise AnswerLost("the stream ended before its program did; whether that went on is unknown")


class EventReader(_Reader):
    """Makes events of an NDJSON answer. The last one gets a whole outcome, though the wire says nothing twice."""

    def __init__(self) -> None:
        super().__init__()
        self._texts: dict[str, list[str]] = {"stdout": [], "stderr": []}
        self._displays: list[Display] = []

    def feed(self, chunk: bytes) -> Iterator[Event]:
        """Yield the events that are complete with this chunk. Raises BelljarError if one is an error."""
        for told in self.send(chunk):
            with _reading(told):
                event = self._read(told)
            if event is not None:
                yield event

    def _read(self, told: Mapping[str, Any]) -> Event | None:
        kind = told["event"]
        if kind in self._texts:
            self._texts[kind].append(_text(told["text"]))
            return Output(stream=kind, text=told["text"])
        if kind == "display":
            self._displays.append(_display(told))
            return self._displays[-1]
        if kind == "started":
            return Started(id=_text(told["id"]))
        if kind == "tool_call":
            return ToolCalled(
                number=int(told["number"]), tool=_text(told["tool"]), arguments=_mapping(told["arguments"])
            )
        if kind == "tool_result":
            return ToolAnswered(number=int(told["number"]), call=_tool_call(told), result=told["result"])
        if kind == "finished":
            said = {stream: "".join(texts) for stream, texts in self._texts.items()}
            outcome = _outcome({**told, **said, "displays": []}, displays=tuple(self._displays))
            self.is_finished = True
            return Finished(outcome=outcome)
        return None


class BatchReader(_Reader):
    """Puts the results of a batch, which come as they finish, back into the order of the request."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._count = count
        self._results: dict[int, Result] = {}
        self._counts = (0, 0)

    def feed(self, chunk: bytes) -> None:
        """Take in what is complete with this chunk. Raises BelljarError if it is an error."""
        for told in self.send(chunk):
            with _reading(told):
                if told["event"] == "result":
                    self._results[int(told["index"])] = _result(told)
                elif told["event"] == "finished":
                    self._counts = int(told["passed"]), int(told["failed"])
                    self.is_finished = True

    def batch(self) -> Batch:
        """The whole answer.

        Raises:
            AnswerLost: it is not whole.
        """
        if sorted(self._results) != list(range(self._count)):
            raise AnswerLost("some results of the batch are missing; whether their programs ran is unknown")
        passed, failed = self._counts
        return Batch(results=tuple(self._results[at] for at in range(self._count)), passed=passed, failed=failed)


# ---- the parts


def _outcome(body: Mapping[str, Any], displays: tuple[Display, ...] = ()) -> Outcome:
    usage, truncated = body["usage"], body["truncated"]
    return Outcome(
        id=_text(body["id"]),
        language=_text(body["language"]),
        status=Status(body["status"]),
        exit_code=None if body["exit_code"] is None else int(body["exit_code"]),
        signal=_text_or_none(body["signal"]),
        stdout=_text(body["stdout"]),
        stderr=_text(body["stderr"]),
        stdout_cut=bool(truncated["stdout"]),
        stderr_cut=bool(truncated["stderr"]),
        error=_program_error(body["error"]),
        displays=displays or tuple(map(_display, body["displays"])),
        artifacts=tuple(map(_file, body["artifacts"])),
        compilation=_compilation(body.get("compile")),
        tool_calls=tuple(map(_tool_call, body.get("tool_calls") or ())),
        coverage=_coverage(body.get("coverage")),
        usage=Usage(
            wall_seconds=float(usage["wall_seconds"]),
            cpu_seconds=float(usage["cpu_seconds"]),
            memory_peak_bytes=int(usage["memory_peak_bytes"]),
            queue_seconds=float(usage["queue_seconds"]),
            network=_network_use(usage.get("network")),
        ),
        cell=None if body.get("cell") is None else int(body["cell"]),
    )


def _network_use(used: Mapping[str, Any] | None) -> NetworkUse | None:
    if used is None:
        return None
    return NetworkUse(
        connections=int(used["connections"]),
        refused=int(used["refused"]),
        sent_bytes=int(used["sent_bytes"]),
        received_bytes=int(used["received_bytes"]),
    )


def _result(body: Mapping[str, Any]) -> Result:
    verdict = _text_or_none(body.get("verdict"))
    if "status" not in body:
        return Result(outcome=None, verdict=verdict, error=_error(body["error"]) if body.get("error") else None)
    return Result(outcome=_outcome(body), verdict=verdict)


def _error(told: Mapping[str, Any]) -> BelljarError:
    """An error that is part of a good answer."""
    return build_error(None, _text(told["code"]), _text(told["message"]), dict(told.get("details") or {}), None)


def _program_error(body: Mapping[str, Any] | None) -> ProgramError | None:
    if body is None:
        return None
    return ProgramError(
        type=_text(body["type"]), message=_text(body["message"]), traceback=tuple(map(_text, body["traceback"]))
    )


def _compilation(body: Mapping[str, Any] | None) -> Compilation | None:
    if body is None:
        return None
    return Compilation(
        status=Status(body["status"]),
        exit_code=None if body["exit_code"] is None else int(body["exit_code"]),
        stdout=_text(body["stdout"]),
        stderr=_text(body["stderr"]),
        wall_seconds=float(body["wall_seconds"]),
        was_cached=bool(body["cached"]),
    )


def _tool_call(body: Mapping[str, Any]) -> ToolCall:
    return ToolCall(tool=_text(body["tool"]), ok=bool(body["ok"]), seconds=float(body["seconds"]))


def _coverage(body: Mapping[str, Any] | None) -> CoverageReport | None:
    if body is None:
        return None
    return CoverageReport(percent=float(body["percent"]), files=tuple(map(_file_coverage, body["files"])))


def _file_coverage(body: Mapping[str, Any]) -> FileCoverage:
    branches = body.get("missing_branches")
    return FileCoverage(
        path=_text(body["path"]),
        percent=float(body["percent"]),
        executed=tuple(map(int, body["executed"])),
        missing=tuple(map(int, body["missing"])),
        missing_branches=None if branches is None else tuple((int(start), int(end)) for start, end in branches),
    )


def _display(body: Mapping[str, Any]) -> Display:
    mime, content = _text(body["mime"]), _text(body["data"])
    bundle = body.get("bundle")
    shown = Display(
        mime=mime,
        content=content.encode(),
        bundle=None if bundle is None else int(bundle),
        is_result=bool(body.get("result")),
    )
    return shown if shown.is_text else replace(shown, content=base64.b64decode(content, validate=True))


def _file(body: Mapping[str, Any]) -> File:
    content = _text(body["content"])
    is_text = body.get("encoding", "base64") == "utf-8"
    raw = content.encode() if is_text else base64.b64decode(content, validate=True)
    return File(path=_text(body["path"]), content=raw)


def _session(body: Mapping[str, Any]) -> SessionState:
    return SessionState(
        id=_text(body["id"]),
        language=_text(body["language"]),
        environment=_text(body["environment"]),
        is_busy=body["state"] == "busy",
        cells=int(body["cells"]),
        memory_bytes=int(body["memory_bytes"]),
        created_at=_seconds(body["created_at"]),
        last_used_at=_seconds(body["last_used_at"]),
        expires_at=_seconds(body["expires_at"]),
        parent=_text_or_none(body["parent"]),
        limits=Limits.from_json(body["limits"]),
    )


def _seconds(moment: object) -> float:
    return datetime.fromisoformat(_text(moment)).timestamp()


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"a string was expected, not {type(value).__name__}")
    return value


def _mapping(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"an object was expected, not {type(value).__name__}")
    return value


def _text_or_none(value: object) -> str | None:
    return None if value is None else _text(value)
