"""The client for event loops."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, Unpack, overload

from belljar.client.progress import progress_of
from belljar.client.request import (
    Case,
    Compare,
    Program,
    RunOptions,
    build_aside,
    build_batch,
    build_body,
    build_program,
    count_programs,
)
from belljar.client.responses import BatchReader, EventReader
from belljar.client.results import Batch, Environment, Health, Language, Server
from belljar.client.retries import Refused
from belljar.client.routes import Call
from belljar.client.session_request import SessionCalls, SessionOptions
from belljar.client.sessions import AsyncSession, Opening
from belljar.client.transport import Connected, attempting, load_httpx, request_of
from belljar.contract.errors import BelljarError, CallerError, InvalidExecution
from belljar.contract.execution import Event, Outcome
from belljar.contract.sessions import SessionState

if TYPE_CHECKING:
    import httpx

AHEAD = 16  # `run_many` holds this many times `max_in_flight` answers, so that one slow program delays no others
NO_MORE = object()

_Read = TypeVar("_Read")


class AsyncClient(Connected):
    """Runs programs on a server, from the event loop that first uses it. Close it, or use `async with`."""

    _http: httpx.AsyncClient

    def _prepare(self) -> None:
        self._http = load_httpx().AsyncClient(**self._connection.options())
        self._loop: asyncio.AbstractEventLoop | None = None

    async def close(self) -> None:
        """Hang up; what still runs for this client is cancelled by that."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def execute(self, code: str, **asked: Unpack[RunOptions]) -> Outcome:
        """Run one program to its end; cancelling this ends it.

        Raises:
            CallerError: the request must change. Overloaded: it may work later. SandboxFault: the server broke.
            AnswerLost: the program may have run, and nobody can say how it went.
        """
        body = await build_aside(build_body, code, reads=[asked], **asked)
        return await self._request(self._calls.execute(body))

    run = execute  # by the name it has in a Sandbox: either can take the other's place

    async def stream(self, code: str, **asked: Unpack[RunOptions]) -> AsyncGenerator[Event, None]:
        """Yield what a program does while it does it; closing this early (`aclose`) hangs up, which ends it.

        Raises:
            BelljarError: as `execute`, from the first step.
        """
        body = await build_aside(build_body, code, reads=[asked], **asked)
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
        **asked: Unpack[RunOptions],
    ) -> Batch: ...

    async def batch(
        self,
        programs: str | Iterable[Program],
        /,
        *,
        cases: Iterable[Case | Mapping[str, Any]] | None = None,
        compare: Compare | None = None,
        stop_on_failure: bool | None = None,
        **asked: Unpack[RunOptions],
    ) -> Batch:
        """Run several programs, or one program against several cases, in one request.

        Raises:
            BelljarError: as `execute`.
        """
        given = programs if isinstance(programs, str) else list(programs)
        reads = [asked] if isinstance(given, str) else given
        body = await build_aside(build_batch, given, cases, compare, stop_on_failure, asked, reads=reads)
        reader = BatchReader(count_programs(body))
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
        """Run programs side by side and yield their outcomes in order; they are taken as there is room for them.

        With `return_exceptions`, a program that could not be run yields its error in its place; without, the first
        error ends all. `progress` shows a bar on standard error.
        """
        gate = asyncio.Semaphore(check_width(max_in_flight))
        source = iter(programs)
        tasks: deque[asyncio.Task[Outcome | BelljarError]] = deque()
        with progress_of(programs, progress) as advance:
            try:
                while True:
                    while len(tasks) < max_in_flight or (len(tasks) < AHEAD * max_in_flight and not tasks[0].done()):
                        program = next(source, NO_MORE)
                        if program is NO_MORE:
                            break
                        tasks.append(asyncio.create_task(self.run_gated(gate, program, return_exceptions)))
                        tasks[-1].add_done_callback(advance)
                    if not tasks:
                        return
                    yield await tasks[0]
                    tasks.popleft()
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def run_gated(self, gate: asyncio.Semaphore, program: object, keep_error: bool) -> Outcome | BelljarError:
        """Run one of many, once the gate lets it through."""
        async with gate:
            try:
                body = await build_aside(build_program, program, reads=[program])
                return await self._request(self._calls.execute(body))
            except BelljarError as error:
                if not keep_error:
                    raise
                return error

    def session(self, **asked: Unpack[SessionOptions]) -> Opening:
        """Open a session, an interpreter that stays: `async with client.session() as s`, or `await` and close it.

        Raises:
            TooManySessions: as many are open as may be. CallerError: the request must change.
        """
        return Opening(self, asked)

    async def attach(self, session_id: str) -> AsyncSession:
        """A session that is open already.

        Raises:
            SessionNotFound: there is none of that id, or it is another key's. SessionEnded: it is gone.
        """
        calls = SessionCalls(id=session_id, room_seconds=self._calls.room_seconds)
        return AsyncSession(self, await self._request(calls.state()))

    async def sessions(self) -> list[SessionState]:
        """The sessions of this client's key."""
        return await self._request(self._calls.sessions())

    async def languages(self) -> list[Language]:
        """The languages of the server, also those it knows but has no tools for."""
        return await self._request(self._calls.languages())

    async def environments(self) -> list[Environment]:
        """The guest environments of the server."""
        return await self._request(self._calls.environments())

    async def info(self) -> Server:
        """The server's version, walls and limits."""
        return await self._request(self._calls.info())

    async def health(self) -> Health:
        """Whether a program could be run right now; asked once, without retries."""
        return await self._request(self._calls.health())

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
        """The pieces of a stream as they arrive; closing this hangs up."""
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
        """What a stream tells; closing this early hangs up."""
        reader = EventReader()
        with reader.to_the_end():
            async with contextlib.aclosing(self._chunks(call)) as chunks:
                async for chunk in chunks:
                    for event in reader.feed(chunk):
                        yield event

    async def _open(self, call: Call[Any], opened: contextlib.AsyncExitStack) -> httpx.Response:
        """The head of a good answer; `opened` hangs up."""
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


def check_width(max_in_flight: int) -> int:
    """Refuse to run nothing at a time."""
    if max_in_flight < 1:
        raise InvalidExecution("max_in_flight must be at least 1", field="max_in_flight")
    return max_in_flight
