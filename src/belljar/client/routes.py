"""Every route of the API: what is sent, how long the server may stay silent, how its answer is read.

Written once for both clients, which only differ in how they wait.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from belljar.client import responses
from belljar.client.request import Body, encode, wall_seconds_of
from belljar.client.results import Environment, Health, Language, Server
from belljar.contract.execution import Outcome
from belljar.contract.sessions import SessionState

QUESTION_SECONDS = 30.0  # for an answer that needs no program
WALL_SECONDS = 300.0  # taken for a program without a limit of its own: the server's default is not known here

_Read = TypeVar("_Read")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(Generic[_Read]):
    """One request, and how its answer is read."""

    method: str
    path: str
    silence_seconds: float  # the longest the server may stay silent
    read: Callable[[bytes], _Read]
    content: bytes | None = None
    content_type: str = "application/json"
    is_stream: bool = False
    runs_code: bool = False
    is_asked_once: bool = False
    good_statuses: tuple[int, ...] = ()  # besides 2xx

    @property
    def accept(self) -> str:
        """The type of answer that is asked for."""
        return "application/x-ndjson" if self.is_stream else "application/json"

    def is_good(self, status: int) -> bool:
        """Whether this is no error."""
        return 200 <= status < 300 or status in self.good_statuses

    def judge(self, status: int, headers: Mapping[str, str], content: bytes) -> _Read:
        """Read an answer.

        Raises:
            Refused: it is an error.
            AnswerLost: it makes no sense.
        """
        if not self.is_good(status):
            raise responses.read_refusal(status, headers, content, runs_code=self.runs_code)
        return self.read(content)


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """Makes a call for each route."""

    room_seconds: float  # for the queue, a compiler and the network, on top of the program's own limit

    def execute(self, body: Body) -> Call[Outcome]:
        """POST /v1/execute."""
        return self._run("/v1/execute", body, responses.read_outcome, self._silence_seconds(body))

    def stream(self, body: Body) -> Call[bytes]:
        """POST /v1/execute for a stream, whose reader is an EventReader."""
        return self._run("/v1/execute", body, bytes, self._silence_seconds(body), is_stream=True)

    def batch(self, body: Body) -> Call[bytes]:
        """POST /v1/batch for a stream, whose reader is a BatchReader: no silence is longer than one program."""
        each = body.get("executions", [body])
        longest_seconds = max((wall_seconds_of(one) or WALL_SECONDS for one in each), default=0.0)
        return self._run("/v1/batch", body, bytes, self.room_seconds + longest_seconds, is_stream=True)

    def open_session(self, body: Body) -> Call[SessionState]:
        """POST /v1/sessions. Never sent twice by itself: a session whose answer was lost would stay, unknown."""
        return self._run("/v1/sessions", body, responses.read_session, self.room_seconds)

    def sessions(self) -> Call[list[SessionState]]:
        """GET /v1/sessions."""
        return _request("/v1/sessions", responses.read_sessions)

    def languages(self) -> Call[list[Language]]:
        """GET /v1/languages."""
        return _request("/v1/languages", responses.read_languages)

    def environments(self) -> Call[list[Environment]]:
        """GET /v1/environments."""
        return _request("/v1/environments", responses.read_environments)

    def info(self) -> Call[Server]:
        """GET /v1/info."""
        return _request("/v1/info", responses.read_server)

    def health(self) -> Call[Health]:
        """GET /health, once: who asks wants to know how it is now. There, 503 is an answer as good as any."""
        return Call(
            method="GET",
            path="/health",
            silence_seconds=QUESTION_SECONDS,
            read=responses.read_health,
            is_asked_once=True,
            good_statuses=(503,),
        )

    def _run(
        self,
        path: str,
        body: Body,
        read: Callable[[bytes], _Read],
        silence_seconds: float,
        is_stream: bool = False,
    ) -> Call[_Read]:
        return Call(
            method="POST",
            path=path,
            content=encode(body),
            silence_seconds=silence_seconds,
            read=read,
            is_stream=is_stream,
            runs_code=True,
        )

    def _silence_seconds(self, body: Body) -> float:
        return self.room_seconds + (wall_seconds_of(body) or WALL_SECONDS)


def _request(path: str, read: Callable[[bytes], _Read]) -> Call[_Read]:
    return Call(method="GET", path=path, silence_seconds=QUESTION_SECONDS, read=read)
