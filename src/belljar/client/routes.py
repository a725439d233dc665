"""Every route of the API: what is sent, how long the server may stay silent, how its answer is read.

Written once for both clients, which differ only in how they wait.
"""

from __future__ import annotations

import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from belljar.client import responses
from belljar.client.request import Body, encode
from belljar.contract.execution import Outcome
from belljar.contract.files import check_relative_path
from belljar.contract.sessions import SessionState, WorkFile

_QUERY_SECONDS = 30.0  # for an answer that needs no program
_WALL_SECONDS = 300.0  # assumed for a program without a limit of its own: the server's default is not known here

_Read = TypeVar("_Read")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(Generic[_Read]):
    """One request, and how its answer is read."""

    method: str
    path: str
    read: Callable[[bytes], _Read]
    silence_seconds: float = _QUERY_SECONDS  # the longest the server may stay silent
    content: bytes | None = None
    content_type: str = "application/json"
    is_stream: bool = False
    runs_code: bool = False
    is_sent_once: bool = False
    good_statuses: tuple[int, ...] = ()  # besides 2xx

    def is_good(self, status: int) -> bool:
        """Whether an answer with this status is not an error."""
        return 200 <= status < 300 or status in self.good_statuses

    def judge(self, status: int, headers: Mapping[str, str], content: bytes) -> _Read:
        """Read an answer.

        Raises:
            Refused: it is an error.
            AnswerLost: it is not an answer of Belljar's API.
        """
        if not self.is_good(status):
            raise responses.read_refusal(status, headers, content, runs_code=self.runs_code)
        return self.read(content)


SESSIONS = Call(method="GET", path="/v1/sessions", read=responses.read_sessions)
LANGUAGES = Call(method="GET", path="/v1/languages", read=responses.read_languages)
ENVIRONMENTS = Call(method="GET", path="/v1/environments", read=responses.read_environments)
INFO = Call(method="GET", path="/v1/info", read=responses.read_server)
# Sent once, because it asks about this moment; 503 is an answer like any other.
HEALTH = Call(method="GET", path="/health", read=responses.read_health, is_sent_once=True, good_statuses=(503,))


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """Makes a call for each route that takes a body."""

    room_seconds: float  # for the queue, a compiler and the network, on top of the program's own limit

    def execute(self, body: Body) -> Call[Outcome]:
        """POST /v1/execute, for the whole outcome."""
        return self._post("/v1/execute", body, responses.read_outcome, _wall_seconds(body))

    def stream(self, body: Body) -> Call[bytes]:
        """POST /v1/execute for a stream, which an EventReader reads."""
        return self._post("/v1/execute", body, bytes, _wall_seconds(body), is_stream=True)

    def batch(self, body: Body) -> Call[bytes]:
        """POST /v1/batch for a stream, which a BatchReader reads: no silence is longer than one program."""
        longest_seconds = max(map(_wall_seconds, body.get("executions", [body])), default=0.0)
        return self._post("/v1/batch", body, bytes, longest_seconds, is_stream=True)

    def open_session(self, body: Body) -> Call[SessionState]:
        """POST /v1/sessions. Not sent again if the answer is lost: the session would stay open, and unknown."""
        return self._post("/v1/sessions", body, responses.read_session, 0.0)

    def _post(
        self, path: str, body: Body, read: Callable[[bytes], _Read], run_seconds: float, is_stream: bool = False
    ) -> Call[_Read]:
        return Call(
            method="POST",
            path=path,
            content=encode(body),
            silence_seconds=self.room_seconds + run_seconds,
            read=read,
            is_stream=is_stream,
            runs_code=True,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionCalls:
    """Makes a call for each route of one session."""

    id: str
    room_seconds: float
    wall_seconds: float = _WALL_SECONDS  # of a cell without a limit of its own

    def state(self) -> Call[SessionState]:
        return self._call("GET", "", responses.read_session)

    def close(self) -> Call[None]:
        return self._call("DELETE", "", responses.read_nothing)

    def run(self, body: Body) -> Call[Outcome]:
        return self._run(body, responses.read_outcome)

    def stream(self, body: Body) -> Call[bytes]:
        """For a stream, which an EventReader reads."""
        return self._run(body, bytes, is_stream=True)

    def branch(self, count: int, reseed: bool) -> Call[list[SessionState]]:
        """Not sent again if the answer is lost, for the same reason as `open_session`."""
        content = encode({"count": count, "reseed": reseed})
        return self._call("POST", "/branch", responses.read_sessions, content=content, runs_code=True)

    def interrupt(self) -> Call[bool]:
        """Not sent again if the answer is lost: the second might interrupt the next cell."""
        return self._call("POST", "/interrupt", responses.read_interrupted, runs_code=True)

    def files(self) -> Call[list[WorkFile]]:
        return self._call("GET", "/files", responses.read_work_files)

    def upload(self, path: str, content: bytes) -> Call[None]:
        route = _file_route(path)
        return self._call(
            "PUT", route, responses.read_nothing, content=content, content_type="application/octet-stream"
        )

    def download(self, path: str) -> Call[bytes]:
        return self._call("GET", _file_route(path), bytes)

    def delete(self, path: str) -> Call[None]:
        return self._call("DELETE", _file_route(path), responses.read_nothing, runs_code=True)

    def _run(self, body: Body, read: Callable[[bytes], _Read], is_stream: bool = False) -> Call[_Read]:
        queue_seconds = 0.0 if body.get("wait") is False else _WALL_SECONDS  # for cells of other callers
        return self._call(
            "POST",
            "/execute",
            read,
            content=encode(body),
            silence_seconds=self.room_seconds + _wall_seconds(body, self.wall_seconds) + queue_seconds,
            is_stream=is_stream,
            runs_code=True,
        )

    def _call(self, method: str, below: str, read: Callable[[bytes], _Read], **more: Any) -> Call[_Read]:
        path = f"/v1/sessions/{urllib.parse.quote(self.id, safe='')}{below}"
        more.setdefault("silence_seconds", _QUERY_SECONDS + self.room_seconds)
        return Call(method=method, path=path, read=read, **more)


def _file_route(path: str) -> str:
    """Checked here too: a path with '..' would be another route by the time it is sent."""
    return "/files/" + urllib.parse.quote(check_relative_path(path))


def _wall_seconds(body: Body, default_seconds: float = _WALL_SECONDS) -> float:
    """How long the program of this body may run."""
    limits = body.get("limits")
    seconds = body.get("timeout", limits.get("wall_seconds") if isinstance(limits, dict) else None)
    return float(seconds) if isinstance(seconds, (int, float)) and seconds > 0 else default_seconds
