"""The client for event loops."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, Unpack, overload

from belljar.client import routes
from belljar.client.progress import progress_of
from belljar.client.request import (
    Case,
    Compare,
    RunOptions,
    SessionOptions,
    build_aside,
    build_batch,
    build_body,
    build_program,
)
from belljar.client.responses import BatchReader, EventReader
from belljar.client.results import Batch, Environment, Health, Language, Server
from belljar.client.retries import Refused
from belljar.client.routes import Call, SessionCalls
from belljar.client.sessions import AsyncSession, Opening
from belljar.client.transport import BaseClient, attempting, load_httpx, request_of
from belljar.contract.errors import BelljarError, CallerError
from belljar.contract.execution import Event, Outcome
from belljar.contract.sessions import SessionState
from belljar.portal import Program, run_many

if TYPE_CHECKING:
    import httpx

_Read = TypeVar("_Read")


class AsyncClient(BaseClient):
    """Runs programs on a server, on the event loop that first uses it. Close it, or use `async with`."""

    _http: httpx.AsyncClient

    def _prepare(self) -> None:
        self._http = load_httpx().AsyncClient(**self._connection.options())
        self._loop: asyncio.AbstractEventLoop | None = None

    async def close(self) -> None:
        """Close the connections; the server then cancels what still runs for this client."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def execute(self, code: str, **options: Unpack[RunOptions]) -> Outcome:
        """Run one program to its end; cancelling this ends it.

        Raises:
            CallerError: the request must change. Overloaded: it may work later. SandboxFault: the server failed.
            AnswerLost: the program may have run; its outcome is unknown.
        """
        body = await build_aside(build_body, code, reads=[options], **options)
        return await self._request(self._calls.execute(body))

    run = execute  # its name in a Sandbox, so that either can replace the other

    async def stream(self, code: str, **options: Unpack[RunOptions]) -> AsyncGenerator[Event, None]:
        """Yield the events of a program as they happen; closing this early (`aclose`) hangs up, which ends it.

        Raises:
            BelljarError: as `execute`, when the first event is requested.
        """
        body = await build_aside(build_body, code, reads=[options], **options)
        async with contextlib.aclosing(self._events(self._calls.stream(body))) as events:
            async for event in events:
                yield event

    @overload
    async def batch(self, programs: Iterable[Program], /) -> Batch: ...

    @overload
    async def batch(
        self,
        code: str,
        /,
        *,
        cases: Iterable[Case | Mapping[str, Any]],
        compare: Compare | None = None,
        stop_on_failure: bool | None = None,
        **options: Unpack[RunOptions],
    ) -> Batch: ...

    async def batch(
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
        given = programs if isinstance(programs, str) else list(programs)
        reads = [options] if isinstance(given, str) else given
        body = await build_aside(build_batch, given, cases, compare, stop_on_failure, options, reads=reads)
        reader = BatchReader(body)
        with reader.to_the_end():
            async with contextlib.aclosing(self._chunks(self._calls.batch(body))) as chunks:
                async for chunk in chunks:
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
    ) -> AsyncGenerator[Outcome, None]: ...

    @overload
    def run_many(
        self,
        programs: Iterable[Program],
        *,
        max_in_flight: int = 16,
        progress: bool = False,
        return_exceptions: Literal[True],
    ) -> AsyncGenerator[Outcome | BelljarError, None]: ...

    async def run_many(
        self,
        programs: Iterable[Program],
        *,
        max_in_flight: int = 16,
        progress: bool = False,
        return_exceptions: bool = False,
    ) -> AsyncGenerator[Outcome | BelljarError, None]:
        """Run programs concurrently and yield their outcomes in order; programs are taken as there is room for them.

        With `return_exceptions`, a program that could not be run yields its error in place of an outcome; without, the
        first error ends all. `progress` shows a bar on standard error.
        """
        with progress_of(programs, progress) as advance:
            outcomes = run_many(self._run_program, programs, max_in_flight, return_exceptions, advance)
            async with contextlib.aclosing(outcomes):
                async for outcome in outcomes:
                    yield outcome

    async def _run_program(self, program: object) -> Outcome:
        body = await build_aside(build_program, program, reads=[program])
        return await self._request(self._calls.execute(body))

    def session(self, **options: Unpack[SessionOptions]) -> Opening:
        """Open a session, an interpreter that keeps its state: use `async with`, or `await` it and close it.

        Raises:
            TooManySessions: too many are open. CallerError: the request must change.
        """
        return Opening(self, options)

    async def attach(self, session_id: str) -> AsyncSession:
        """Return a session that is open already.

        Raises:
            SessionNotFound: it does not exist, or belongs to another key. SessionEnded: it has ended.
        """
        calls = SessionCalls(id=session_id, room_seconds=self._calls.room_seconds)
        return AsyncSession(self, await self._request(calls.state()))

    async def sessions(self) -> list[SessionState]:
        """List the open sessions of this client's key."""
        return await self._request(routes.SESSIONS)

    async def languages(self) -> list[Language]:
        """List the languages that the server knows, including those that are not installed."""
        return await self._request(routes.LANGUAGES)

    async def environments(self) -> list[Environment]:
        """List the guest environments of the server."""
        return await self._request(routes.ENVIRONMENTS)

    async def info(self) -> Server:
        """Return the server's version, isolation layers and limits."""
        return await self._request(routes.INFO)

    async def health(self) -> Health:
        """Return whether the server can run a program now; sent once, without retries."""
        return await self._request(routes.HEALTH)

    async def _request(self, call: Call[_Read]) -> _Read:
        tries = self._tries(call)
        while True:
            try:
                self._check_usable()
                with attempting(call):
                    response = await self._http.request(**request_of(call))
                return call.judge(response.status_code, response.headers, response.content)
            except Refused as refused:
                pause_seconds = tries.pause_seconds(refused)
            await asyncio.sleep(pause_seconds)

    async def _chunks(self, call: Call[Any]) -> AsyncGenerator[bytes, None]:
        """Yield the pieces of a stream as they arrive; closing this hangs up."""
        tries = self._tries(call)
        while True:
            try:
                async with contextlib.AsyncExitStack() as opened:
                    arriving = (await self._open(call, opened)).aiter_bytes()
                    while chunk := await self._next(call, arriving):
                        yield chunk
                    return
            except Refused as refused:
                pause_seconds = tries.pause_seconds(refused)
            await asyncio.sleep(pause_seconds)

    async def _events(self, call: Call[bytes]) -> AsyncGenerator[Event, None]:
        """Yield the events of a stream; closing this early hangs up."""
        reader = EventReader()
        with reader.to_the_end():
            async with contextlib.aclosing(self._chunks(call)) as chunks:
                async for chunk in chunks:
                    for event in reader.feed(chunk):
                        yield event

    async def _open(self, call: Call[Any], opened: contextlib.AsyncExitStack) -> httpx.Response:
        """Return the head of an answer that is not an error; closing `opened` hangs up."""
        self._check_usable()
        with attempting(call):
            response = await opened.enter_async_context(self._http.stream(**request_of(call)))
            if not call.is_good(response.status_code):
                await response.aread()
        if not call.is_good(response.status_code):
            call.judge(response.status_code, response.headers, response.content)
        return response

    async def _next(self, call: Call[Any], chunks: Any) -> bytes:
        with attempting(call):
            chunk: bytes = await anext(chunks, b"")
            return chunk

    def _check_usable(self) -> None:
        super()._check_usable()
        loop = asyncio.get_running_loop()
        self._loop = self._loop or loop
        if loop is not self._loop:
            raise CallerError("this client is open on another event loop; make one for each loop")
