"""The client for ordinary code, from any number of threads."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, Unpack, overload

from belljar.client.async_client import AHEAD, NO_MORE, AsyncClient, check_width
from belljar.client.progress import progress_of
from belljar.client.request import Case, Compare, Program, RunOptions, build_batch, build_body, count_programs
from belljar.client.responses import BatchReader, EventReader
from belljar.client.results import Batch, Environment, Health, Language, Server
from belljar.client.retries import Refused
from belljar.client.routes import Call
from belljar.client.session_request import SessionCalls, SessionOptions, build_session
from belljar.client.sessions import Session
from belljar.client.transport import Connected, attempting, load_httpx, request_of
from belljar.contract.errors import BelljarError
from belljar.contract.execution import Event, Outcome
from belljar.contract.sessions import SessionState

if TYPE_CHECKING:
    import httpx

_Read = TypeVar("_Read")


class Client(Connected):
    """Runs programs on a server, from any number of threads. Close it, or use `with`."""

    _http: httpx.Client

    def _prepare(self) -> None:
        self._http = load_httpx().Client(**self._connection.options())

    def close(self) -> None:
        """Give back the connections; let no thread run anything meanwhile."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def execute(self, code: str, **asked: Unpack[RunOptions]) -> Outcome:
        """Run one program to its end; an interrupt (Ctrl-C) hangs up, which ends it.

        Raises:
            CallerError: the request must change. Overloaded: it may work later. SandboxFault: the server broke.
            AnswerLost: the program may have run, and nobody can say how it went.
        """
        return self._request(self._calls.execute(build_body(code, **asked)))

    run = execute  # by the name it has in a Sandbox: either can take the other's place

    def stream(self, code: str, **asked: Unpack[RunOptions]) -> Generator[Event, None, None]:
        """Yield what a program does while it does it; closing this early hangs up, which ends it.

        Raises:
            BelljarError: as `execute`, from the first step.
        """
        yield from self._events(self._calls.stream(build_body(code, **asked)))

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
        **asked: Unpack[RunOptions],
    ) -> Batch: ...

    def batch(
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
        body = build_batch(programs, cases, compare, stop_on_failure, asked)
        reader = BatchReader(count_programs(body))
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
        """As AsyncClient.run_many; `programs` is read in the calling thread, so it may take its time.

        The requests live on an event loop of their own: closing this early can then hang up on all of them, where a
        thread that waits for an answer could not be interrupted.
        """
        self._check_usable()
        check_width(max_in_flight)
        source = iter(programs)
        futures: deque[Future[Outcome | BelljarError]] = deque()
        from anyio.from_thread import start_blocking_portal  # comes with httpx

        with contextlib.ExitStack() as opened:
            # One that is held to the end of the interpreter is closed after all threads have stopped: too late to
            # hang up, and it would wait for ever.
            atexit.register(opened.close)
            opened.callback(atexit.unregister, opened.close)
            advance = opened.enter_context(progress_of(programs, progress))
            portal = opened.enter_context(start_blocking_portal())
            client = opened.enter_context(portal.wrap_async_context_manager(AsyncClient.like(self)))
            many = _Many(client, max_in_flight)
            opened.callback(portal.call, many.end)
            while True:
                while len(futures) < max_in_flight or (len(futures) < AHEAD * max_in_flight and not futures[0].done()):
                    program = next(source, NO_MORE)
                    if program is NO_MORE:
                        break
                    futures.append(portal.start_task_soon(many.run, program, return_exceptions))
                    futures[-1].add_done_callback(advance)
                if not futures:
                    return
                yield futures[0].result()
                futures.popleft()

    def session(self, **asked: Unpack[SessionOptions]) -> Session:
        """Open a session: an interpreter that stays. Close it, or use `with`.

        Raises:
            TooManySessions: as many are open as may be. CallerError: the request must change.
        """
        return Session(self, self._request(self._calls.open_session(build_session(**asked))))

    def attach(self, session_id: str) -> Session:
        """A session that is open already.

        Raises:
            SessionNotFound: there is none of that id, or it is another key's. SessionEnded: it is gone.
        """
        return Session(self, self._request(SessionCalls(id=session_id, room_seconds=self._calls.room_seconds).state()))

    def sessions(self) -> list[SessionState]:
        """The sessions of this client's key."""
        return self._request(self._calls.sessions())

    def languages(self) -> list[Language]:
        """The languages of the server, also those it knows but has no tools for."""
        return self._request(self._calls.languages())

    def environments(self) -> list[Environment]:
        """The guest environments of the server."""
        return self._request(self._calls.environments())

    def info(self) -> Server:
        """The server's version, walls and limits."""
        return self._request(self._calls.info())

    def health(self) -> Health:
        """Whether a program could be run right now; asked once, without retries."""
        return self._request(self._calls.health())

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
        """The pieces of a stream as they arrive; closing this hangs up."""
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
        """What a stream tells; closing this early hangs up."""
        reader = EventReader()
        with reader.to_the_end(), contextlib.closing(self._chunks(call)) as chunks:
            for chunk in chunks:
                yield from reader.feed(chunk)

    def _open(self, call: Call[Any], opened: contextlib.ExitStack) -> httpx.Response:
        """The head of a good answer; `opened` hangs up."""
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


class _Many:
    """The requests of one `run_many`, known on the loop they run on.

    Their thread may be interrupted just as it starts one, and then has no hold on it.
    """

    def __init__(self, client: AsyncClient, width: int) -> None:
        self._client = client
        self._gate = asyncio.Semaphore(width)
        self._tasks: set[asyncio.Task[Any]] = set()

    async def run(self, program: object, keep_error: bool) -> Outcome | BelljarError:
        """Run one of them, once there is room for it."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            return await self._client.run_gated(self._gate, program, keep_error)
        finally:
            self._tasks.discard(task)

    async def end(self) -> None:
        """Hang up on all of them, and return when they are gone: the client they use is closed next."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
