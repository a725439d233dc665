"""What `Sandbox` and `Client` share: an event loop in a thread for blocking callers, `run_many`, checks of keywords."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import os
import threading
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Iterable, Iterator, Mapping
from typing import Any, Generic, Protocol, TypeVar

from belljar.contract.errors import BelljarError, CallerError, Draining, InvalidExecution
from belljar.contract.execution import Outcome

FORKED = "this {} belongs to the process that made it; make a new one after a fork"
CLOSED = "this {} is closed; make a new one"

_AHEAD = 16  # `run_many` holds this many times `width` results, so that one slow program does not delay the others
_EXIT_SECONDS = 10.0  # how long an interpreter that exits without `close` waits for programs to end
_NO_MORE = object()

Program = str | Mapping[str, Any]  # the code, or a mapping with "code" and the keywords of `run`


class Target(Protocol):
    """What lives on a portal's event loop."""

    async def open(self) -> object:
        """Called first, on the loop."""

    async def close(self, grace_seconds: float) -> None:
        """Called last, on the loop, also if `open` failed."""


_T = TypeVar("_T")
_Target = TypeVar("_Target", bound=Target)
_Handle = TypeVar("_Handle", "asyncio.Task[Outcome | BelljarError]", "Call[Outcome | BelljarError]")


class Portal(Generic[_Target]):
    """An event loop in a thread of its own, and the target that lives on it.

    It never refers to the object that owns it: an owner that is dropped without `close` must be collected, and end it.
    """

    def __init__(self, target: _Target, name: str) -> None:
        self.target = target
        self.name = name  # of the target, in error messages
        self.opened: concurrent.futures.Future[None] = concurrent.futures.Future()
        self.over: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._pid = os.getpid()
        self._grace_seconds = 0.0
        self._begun = threading.Event()
        # No call may arrive after the last one was started. Reentrant: the collector may end a generator in `call`.
        self._counter = threading.RLock()
        self._takes_calls = True
        self.thread = threading.Thread(target=self._run, name="belljar", daemon=True)
        self.thread.start()
        self._begun.wait()

    def wait_until_open(self) -> None:
        """Wait until the target is open; if that fails or is interrupted, return after the thread has ended."""
        try:
            self.opened.result()
        except BaseException:
            self.stop(grace_seconds=0.0)
            concurrent.futures.wait([self.over])
            raise

    def call(self, work: Coroutine[Any, Any, _T]) -> Call[_T]:
        """Start `work` on the loop's thread.

        Raises:
            CallerError: the portal is closed, or belongs to another process.
        """
        if os.getpid() != self._pid:
            work.close()
            raise CallerError(FORKED.format(self.name))
        call = Call(self, work)
        with self._counter:
            if not self._takes_calls:
                work.close()
                raise CallerError(CLOSED.format(self.name))
            self.loop.call_soon_threadsafe(call.start)
        return call

    def iterate(self, events: AsyncGenerator[_T, None], owner: object) -> Generator[_T, None, None]:
        """Yield what `events` yields; `owner` is not collected until this ends."""
        try:
            while (event := self.call(_next(events)).result()) is not None:
                yield event
        finally:
            with contextlib.suppress(CallerError):  # closed in the meantime: the program has ended already
                self.call(_close(events)).wait()
            del owner

    def run_many(
        self,
        run: Callable[[object], Awaitable[Outcome]],
        programs: Iterable[object],
        width: int,
        return_exceptions: bool,
        advance: Callable[[], None] = lambda: None,
    ) -> Generator[Outcome | BelljarError, None, None]:
        """Do what the function `run_many` does, but read `programs` in the calling thread, so that it may block."""
        many = _Many(run, width, return_exceptions, advance)
        try:
            for call in many.start(programs, lambda program: self.call(many.run(program)), deque()):
                yield call.result()
        finally:
            # Not by their handles: this thread may be interrupted just as it starts a program, and then has none.
            with contextlib.suppress(CallerError):  # closed in the meantime: all programs have ended already
                self.call(_cancel(many.tasks)).wait()

    def stop(self, grace_seconds: float) -> None:
        """Begin to close; `over` is set when that is done. A second call cuts the grace of the first."""
        self._grace_seconds = grace_seconds
        with contextlib.suppress(RuntimeError):  # the loop is closed: over already
            self.loop.call_soon_threadsafe(self._task.cancel)

    def abandon(self) -> None:
        """Stop because the owner is gone. Never waits on the loop's own thread, where the collector may call this."""
        if os.getpid() != self._pid:
            return
        self.stop(grace_seconds=0.0)
        if threading.current_thread() is not self.thread:
            self.thread.join(_EXIT_SECONDS)

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            asyncio.run(self._live())
        except asyncio.CancelledError:
            pass
        except BaseException as caught:  # noqa: BLE001  the end of this thread: its callers must get the error
            error = caught
        for future in (self.opened, self.over):
            if not future.done():
                future.set_exception(error) if error else future.set_result(None)

    async def _live(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.loop, self._task = asyncio.get_running_loop(), task
        self._begun.set()
        try:
            await self.target.open()
            self.opened.set_result(None)
            await asyncio.Event().wait()  # until `stop` cancels
        except asyncio.CancelledError:
            pass
        finally:
            await self.target.close(self._grace_seconds)
            with self._counter:
                self._takes_calls = False
            await asyncio.sleep(0)  # calls that were accepted start, and are cancelled with the loop


@contextlib.contextmanager
def open_portal(target: _Target, name: str) -> Iterator[Portal[_Target]]:
    """Make a portal that ends with this block, or before the interpreter does."""
    portal = Portal(target, name)
    # A generator that is never closed would get here after all threads have stopped, and wait for ever.
    atexit.register(portal.abandon)
    try:
        portal.wait_until_open()
        yield portal
    finally:
        portal.abandon()
        atexit.unregister(portal.abandon)


class Call(Generic[_T]):
    """A coroutine that runs on the loop's thread, as another thread sees it."""

    def __init__(self, portal: Portal[Any], work: Coroutine[Any, Any, _T]) -> None:
        self._portal = portal
        self._work = work
        self._task: asyncio.Task[_T] | None = None
        self._answer: concurrent.futures.Future[_T] = concurrent.futures.Future()
        self.done = self._answer.done

    def start(self) -> None:
        """On the loop's thread only."""
        self._task = self._portal.loop.create_task(self._work)
        self._task.add_done_callback(self._set_answer)

    def result(self) -> _T:
        """Wait for the result; if this thread is interrupted, cancel the work and wait for its end first."""
        try:
            return self._answer.result()
        except BaseException:
            if not self._answer.done():
                with contextlib.suppress(RuntimeError):  # the loop is closed, and the work with it
                    self._portal.loop.call_soon_threadsafe(self._cancel)
                self.wait()
            raise

    def wait(self) -> None:
        """Wait for the end of the work, whatever it is; not on the loop's own thread, where it would never come."""
        if threading.current_thread() is not self._portal.thread:
            concurrent.futures.wait([self._answer])

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _set_answer(self, task: asyncio.Task[_T]) -> None:
        closed = Draining(f"the {self._portal.name} was closed while this ran or waited")
        error = closed if task.cancelled() else task.exception()
        if error is not None:
            self._answer.set_exception(error)
        else:
            self._answer.set_result(task.result())


async def run_many(
    run: Callable[[object], Awaitable[Outcome]],
    programs: Iterable[object],
    width: int,
    return_exceptions: bool,
    advance: Callable[[], None] = lambda: None,
) -> AsyncGenerator[Outcome | BelljarError, None]:
    """Run programs side by side, at most `width` at a time, and yield their outcomes in order.

    Programs are taken as there is room for them. `advance` is called on the event loop whenever one has ended.

    Raises:
        InvalidExecution: `width` is less than 1.
        BelljarError: a program could not be run, unless `return_exceptions` yields the error in its place.
    """
    many = _Many(run, width, return_exceptions, advance)
    tasks: deque[asyncio.Task[Outcome | BelljarError]] = deque()
    try:
        for task in many.start(programs, lambda program: asyncio.create_task(many.run(program)), tasks):
            yield await task
    finally:
        await _cancel(tasks)


class _Many:
    """What one `run_many` runs."""

    def __init__(
        self,
        run: Callable[[object], Awaitable[Outcome]],
        width: int,
        return_exceptions: bool,
        advance: Callable[[], None],
    ) -> None:
        if width < 1:
            raise InvalidExecution("max_in_flight must be at least 1", field="max_in_flight")
        self._run = run
        self._width = width
        self._gate = asyncio.Semaphore(width)
        self._return_exceptions = return_exceptions
        self._advance = advance
        self.tasks: set[asyncio.Task[Any]] = set()

    def start(
        self, programs: Iterable[object], start: Callable[[object], _Handle], started: deque[_Handle]
    ) -> Iterator[_Handle]:
        """Start programs ahead of the one that is waited for; yield their handles, which `started` holds, in order."""
        source = iter(programs)
        while True:
            while len(started) < self._width or (len(started) < _AHEAD * self._width and not started[0].done()):
                program = next(source, _NO_MORE)
                if program is _NO_MORE:
                    break
                started.append(start(program))
            if not started:
                return
            yield started[0]
            started.popleft()

    async def run(self, program: object) -> Outcome | BelljarError:
        """Run one program as soon as fewer than `width` run."""
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        try:
            async with self._gate:
                return await self._run(program)
        except BelljarError as error:
            if not self._return_exceptions:
                raise
            return error
        finally:
            self.tasks.discard(task)
            self._advance()


def refuse_unknown(call: str, fields: Mapping[str, object], known: type) -> None:
    """Raise TypeError, as Python itself would, for a keyword that the TypedDict `known` does not have."""
    for name in fields:
        if name not in known.__annotations__:
            raise TypeError(f"{call}() got an unexpected keyword argument {name!r}")


def split_program(program: object, known: type) -> tuple[str, dict[str, Any]]:
    """Split one of many programs into its code and its other fields, which are those of the TypedDict `known`.

    Raises:
        InvalidExecution: it is neither a string nor a mapping with "code", or has an unknown field.
    """
    if isinstance(program, str):
        return program, {}
    if not isinstance(program, Mapping) or "code" not in program:
        raise InvalidExecution("each program must be a string, or a mapping with 'code' in it", field="programs")
    fields = dict(program)
    code = fields.pop("code")
    unknown = fields.keys() - known.__annotations__.keys()
    if unknown:
        names = ", ".join(known.__annotations__)
        raise InvalidExecution(
            f"unknown field {min(map(repr, unknown))} in a program; choose from code, {names}", field="programs"
        )
    return code, fields


async def _cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _next(events: AsyncGenerator[_T, None]) -> _T | None:
    return await anext(events, None)


async def _close(events: AsyncGenerator[Any, None]) -> None:
    await events.aclose()
