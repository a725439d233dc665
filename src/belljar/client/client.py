"""The client for blocking code, in any number of threads."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator, Iterable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, Unpack, overload

from belljar.client import routes
from belljar.client.async_client import AsyncClient
from belljar.client.progress import progress_of
from belljar.client.request import Case, Compare, RunOptions, SessionOptions, build_batch, build_body, build_session
from belljar.client.responses import BatchReader, EventReader
from belljar.client.results import Batch, Environment, Health, Language, Server
from belljar.client.retries import Refused
from belljar.client.routes import Call, SessionCalls
from belljar.client.sessions import Session
from belljar.client.transport import BaseClient, attempting, load_httpx, request_of
from belljar.contract.errors import BelljarError
from belljar.contract.execution import Event, Outcome
from belljar.contract.sessions import SessionState
from belljar.portal import Program, open_portal

if TYPE_CHECKING:
    import httpx

_Read = TypeVar("_Read")


class Client(BaseClient):
    """Runs programs on a server, in any number of threads. Close it, or use `with`."""

    _http: httpx.Client

    def _prepare(self) -> None:
        self._http = load_httpx().Client(**self._connection.options())

    def close(self) -> None:
        """Close the connections; no other thread may use the client meanwhile."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def execute(self, code: str, **options: Unpack[RunOptions]) -> Outcome:
        """Run one program to its end; an interrupt (Ctrl-C) hangs up, which ends it.

        Raises:
            CallerError: the request must change. Overloaded: it may work later. SandboxFault: the server failed.
            AnswerLost: the program may have run; its outcome is unknown.
        """
        return self._request(self._calls.execute(build_body(code, **options)))

    run = execute  # its name in a Sandbox, so that either can replace the other

    def stream(self, code: str, **options: Unpack[RunOptions]) -> Generator[Event, None, None]:
        """Yield the events of a program as they happen; closing this early hangs up, which ends it.

        Raises:
            BelljarError: as `execute`, when the first event is requested.
        """
        yield from self._events(self._calls.stream(build_body(code, **options)))

    @overload
    def batch(self, programs: Iterable[Program], /) -> Batch: ...

    @overload
    def batch(
        self,
        code: str,
        /,
        *,
        cases: Iterable[Case | Mapping[str, Any]],
        compare: Compare | None = None,
        stop_on_failure: bool | None = None,
        **options: Unpack[RunOptions],
    ) -> Batch: ...

    def batch(
        self,
        programs: str | Iterable[Program],
        /,
        *,
        cases: Iterable[Case | Mapping[str, Any]] | None = None,
        compare: Compare | None = None,
        stop_on_failure: bool | None = None,
        **options: Unpack[RunOptions],
    ) -> Batch:
        """Run several programs, or one program with several cases, in one request.

        Raises:
            BelljarError: as `execute`.
        """
        body = build_batch(programs, cases, compare, stop_on_failure, options)
        reader = BatchReader(body)
        with reader.to_the_end(), contextlib.closing(self._chunks(self._calls.batch(body))) as chunks:
            for chunk in chunks:
                reader.feed(chunk)
        return reader.batch()

    @overload
    def run_many(
        self,
        programs: Iterable[Program],
        *,
        max_in_flight: int = 16,
        progress: bool = False,
        return_exceptions: Literal[False] = False,
    ) -> Generator[Outcome, None, None]: ...

    @overload
    def run_many(
        self,
        programs: Iterable[Program],
        *,
        max_in_flight: int = 16,
        progress: bool = False,
        return_exceptions: Literal[True],
    ) -> Generator[Outcome | BelljarError, None, None]: ...

    def run_many(
        self,
        programs: Iterable[Program],
        *,
        max_in_flight: int = 16,
        progress: bool = False,
        return_exceptions: bool = False,
    ) -> Generator[Outcome | BelljarError, None, None]:
        """As AsyncClient.run_many; `programs` is read in the calling thread, so it may block.

        The requests are sent from an event loop of their own: closing this early then hangs up on all of them, whereas
        threads that wait for answers could not be interrupted.
        """
        self._check_usable()
        with progress_of(programs, progress) as advance, open_portal(_Sender(self), "client") as portal:
            run = portal.target.client._run_program
            yield from portal.run_many(run, programs, max_in_flight, return_exceptions, advance)

    def session(self, **options: Unpack[SessionOptions]) -> Session:
        """Open a session: an interpreter that keeps its state. Close it, or use `with`.

        Raises:
            TooManySessions: too many are open. CallerError: the request must change.
        """
        return Session(self, self._request(self._calls.open_session(build_session(**options))))

    def attach(self, session_id: str) -> Session:
        """Return a session that is open already.

        Raises:
            SessionNotFound: it does not exist, or belongs to another key. SessionEnded: it has ended.
        """
        return Session(self, self._request(SessionCalls(id=session_id, room_seconds=self._calls.room_seconds).state()))

    def sessions(self) -> list[SessionState]:
        """List the open sessions of this client's key."""
        return self._request(routes.SESSIONS)

    def languages(self) -> list[Language]:
        """List the languages that the server knows, including those that are not installed."""
        return self._request(routes.LANGUAGES)

    def environments(self) -> list[Environment]:
        """List the guest environments of the server."""
        return self._request(routes.ENVIRONMENTS)

    def info(self) -> Server:
        """Return the server's version, isolation layers and limits."""
        return self._request(routes.INFO)

    def health(self) -> Health:
        """Return whether the server can run a program now; sent once, without retries."""
        return self._request(routes.HEALTH)

    def _request(self, call: Call[_Read]) -> _Read:
        tries = self._tries(call)
        while True:
            try:
                self._check_usable()
                with attempting(call):
                    response = self._http.request(**request_of(call))
                return call.judge(response.status_code, response.headers, response.content)
            except Refused as refused:
                pause_seconds = tries.pause_seconds(refused)
            time.sleep(pause_seconds)

    def _chunks(self, call: Call[Any]) -> Generator[bytes, None, None]:
        """Yield the pieces of a stream as they arrive; closing this hangs up."""
        tries = self._tries(call)
        while True:
            try:
                with contextlib.ExitStack() as opened:
                    arriving = self._open(call, opened).iter_bytes()
                    while chunk := self._next(call, arriving):
                        yield chunk
                    return
            except Refused as refused:
                pause_seconds = tries.pause_seconds(refused)
            time.sleep(pause_seconds)

    def _events(self, call: Call[bytes]) -> Generator[Event, None, None]:
        """Yield the events of a stream; closing this early hangs up."""
        reader = EventReader()
        with reader.to_the_end(), contextlib.closing(self._chunks(call)) as chunks:
            for chunk in chunks:
                yield from reader.feed(chunk)

    def _open(self, call: Call[Any], opened: contextlib.ExitStack) -> httpx.Response:
        """Return the head of an answer that is not an error; closing `opened` hangs up."""
        self._check_usable()
        with attempting(call):
            response = opened.enter_context(self._http.stream(**request_of(call)))
            if not call.is_good(response.status_code):
                response.read()
        if not call.is_good(response.status_code):
            call.judge(response.status_code, response.headers, response.content)
        return response

    def _next(self, call: Call[Any], chunks: Iterator[bytes]) -> bytes:
        with attempting(call):
            return next(chunks, b"")


class _Sender:
    """The client that `run_many` sends its requests with, in the shape that a portal takes."""

    def __init__(self, client: Client) -> None:
        self.client = AsyncClient.like(client)

    async def open(self) -> None:
        """Nothing: connections are made by the first requests."""

    async def close(self, grace_seconds: float) -> None:
        await self.client.close()
