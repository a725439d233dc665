"""Belljar inside a Python program: `with belljar.Sandbox() as box: box.run("print(1)")`.

`AsyncSandbox` lives on the event loop that opens it. `Sandbox` keeps an event loop in a thread of its own, so that any
number of ordinary threads can run programs at once, also beneath somebody else's event loop, as in a notebook.

A sandbox belongs to the process that made it. A forked child has copies of its descriptors but not its threads, and
would speak into the middle of its parent's conversations; it gets an error instead.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import functools
import os
import threading
import warnings
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, Unpack, cast, overload

from belljar.assembly import build_engine
from belljar.contract.errors import BelljarError, CallerError, InvalidExecution
from belljar.contract.execution import Event, Execution, Outcome
from belljar.contract.files import File
from belljar.contract.request import ExecutionRequest, ProgramKeywords
from belljar.contract.tools import ALL_TOOLS
from belljar.engine.admission.request import admit
from belljar.engine.engine import Engine
from belljar.frontends.embedded.portal import CLOSED, FORKED, Call, Life
from belljar.frontends.embedded.sessions import AsyncSession, Session, SessionOptions, refuse_unknown
from belljar.settings import Settings, load

_AHEAD = 16  # `run_many` holds this many times `max_in_flight` answers, so that one slow program delays no others

_NO_MORE = object()

_T = TypeVar("_T")


class RunOptions(ProgramKeywords, total=False):
    """What may be asked beside the code. `timeout` is in seconds of wall time; a Path among `files` is read here."""

    files: Mapping[str, str | bytes | Path] | Iterable[File | Path] | None
    tools: bool | Sequence[str | Callable[..., Any]]  # functions of yours that the program may call; names of tools


Program = str | Mapping[str, Any]  # the code, or a mapping with "code" and the names of Asked


class _Owned:
    """The settings of a sandbox, and whose it is."""

    def __init__(
        self,
        *,
        settings: Settings | None = None,
        without_walls: Iterable[str] = (),
        progress: Callable[[str], None] | None = None,
    ) -> None:
        """Nothing is started yet; without `settings` they are read from the environment.

        Raises:
            InvalidSettings: a setting makes no sense, or `without_walls` names no wall.
        """
        self.settings = _give_up_walls(load() if settings is None else settings, tuple(without_walls))
        self._progress = progress
        self._pid = os.getpid()
        self._closed = False

    def _check_usable(self) -> None:
        if os.getpid() != self._pid:
            raise CallerError(FORKED)
        if self._closed:
            raise CallerError(CLOSED)

    def _width(self, max_in_flight: int | None) -> int:
        if max_in_flight is None:
            return 2 * self.settings.pool.max_running  # enough that a freed slot finds the next one waiting
        if max_in_flight < 1:
            raise InvalidExecution("max_in_flight must be at least 1", field="max_in_flight")
        return max_in_flight


class AsyncSandbox(_Owned):
    """Runs programs from the event loop that first uses it. Close it, or use `async with`."""

    _engine: Engine | None = None
    _loop: asyncio.AbstractEventLoop | None = None

    async def open(self) -> Self:
        """Start the sandbox now rather than at the first program.

        Raises:
            SandboxFault: it cannot start on this machine.
        """
        await self._ready()
        return self

    async def close(self, grace_seconds: float = 5.0) -> None:
        """Let running programs finish within the grace, cancel the rest, leave nothing behind."""
        if not self._closed and os.getpid() == self._pid:
            self._closed = True
            if self._engine is not None:
                await self._engine.close(grace_seconds)

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close(0.0 if error else 5.0)

    async def run(self, code: str, **asked: Unpack[RunOptions]) -> Outcome:
        """Run one program to its end; cancelling this ends it.

        Raises:
            CallerError: the request must change. Overloaded: it may work later. SandboxFault: we broke.
        """
        refuse_unknown("run", asked, RunOptions)
        if asked.get("tools"):
            with contextlib.ExitStack() as loans:
                return await self._run(code, await self._lend(asked, loans))
        return await self._run(code, asked)

    async def _run(self, code: str, asked: RunOptions) -> Outcome:
        execution = await self._admit(code, asked)
        engine = await self._ready()
        return await engine.run(execution)

    async def stream(self, code: str, **asked: Unpack[RunOptions]) -> AsyncGenerator[Event, None]:
        """Yield what a program does while it does it; closing this early (`aclose`) ends the program."""
        refuse_unknown("stream", asked, RunOptions)
        # Not an asynchronous context manager: an interpreter that exits would close it and this one side by side.
        with contextlib.ExitStack() as loans:
            execution = await self._admit(code, await self._lend(asked, loans))
            engine = await self._ready()
            async with contextlib.aclosing(engine.stream(execution)) as events:
                async for event in events:
                    yield event

    @overload
    def run_many(
        self,
        programs: Iterable[Program],
        *,
        max_in_flight: int | None = None,
        return_exceptions: Literal[False] = False,
    ) -> AsyncGenerator[Outcome, None]: ...

    @overload
    def run_many(
        self, programs: Iterable[Program], *, max_in_flight: int | None = None, return_exceptions: Literal[True]
    ) -> AsyncGenerator[Outcome | BelljarError, None]: ...

    async def run_many(
        self, programs: Iterable[Program], *, max_in_flight: int | None = None, return_exceptions: bool = False
    ) -> AsyncGenerator[Outcome | BelljarError, None]:
        """Run programs side by side and yield their outcomes in order; they are taken as there is room for them.

        With `return_exceptions`, a program that could not be run yields its error in its place.
        """
        width = self._width(max_in_flight)
        gate = asyncio.Semaphore(width)
        source = iter(programs)
        tasks: deque[asyncio.Task[Outcome | BelljarError]] = deque()
        try:
            while True:
                while len(tasks) < width or (len(tasks) < _AHEAD * width and not tasks[0].done()):
                    program = next(source, _NO_MORE)
                    if program is _NO_MORE:
                        break
                    tasks.append(asyncio.create_task(self.run_gated(gate, program, return_exceptions)))
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
                code, asked = _unfold(program)
                return await self.run(code, **asked)
            except BelljarError as error:
                if not keep_error:
                    raise
                return error

    def session(self, **asked: Unpack[SessionOptions]) -> AsyncSession:
        """An interpreter that stays: `async with box.session() as s: await s.run("x = 1")`."""
        self._check_usable()
        refuse_unknown("session", asked, SessionOptions)
        return AsyncSession(self.settings, self._ready, asked)

    def facts(self) -> Mapping[str, Any]:
        """Numbers for monitoring: what runs, what waits."""
        self._check_usable()
        return {} if self._engine is None else self._engine.facts()

    async def _lend(self, asked: RunOptions, loans: contextlib.ExitStack) -> RunOptions:
        """Functions among the tools are offered to this one program, until `loans` is closed."""
        given = asked.get("tools")
        if not given or given is True:
            return {**asked, "tools": [ALL_TOOLS] if given else []}
        if isinstance(given, str) or not isinstance(given, Sequence):
            raise InvalidExecution("tools must be a list of functions and of names, or True for all", field="tools")
        tools = (await self._ready()).tools
        assert tools is not None
        return {**asked, "tools": loans.enter_context(tools.lending(given))}

    async def _admit(self, code: str, asked: RunOptions) -> Execution:
        self._check_usable()
        if any(isinstance(each, Path) for each in _contents(asked.get("files"))):
            return await asyncio.to_thread(_admit, self.settings, code, asked)
        return _admit(self.settings, code, asked)

    async def _ready(self) -> Engine:
        self._check_usable()
        loop = asyncio.get_running_loop()
        if self._engine is None:
            self._engine = build_engine(self.settings, self._progress)
            self._loop = loop
        if loop is not self._loop:
            raise CallerError("this sandbox is open on another event loop; make one for each loop")
        await self._engine.open()
        return self._engine

    def __del__(self) -> None:
        if self._engine is not None and not self._closed and os.getpid() == self._pid:
            warnings.warn(
                "an AsyncSandbox was never closed; use 'async with' or close()", ResourceWarning, stacklevel=2
            )


class Sandbox(_Owned):
    """Runs programs from ordinary code, from any number of threads. Close it, or use `with`."""

    _life: Life | None = None

    def __init__(
        self,
        *,
        settings: Settings | None = None,
        without_walls: Iterable[str] = (),
        progress: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(settings=settings, without_walls=without_walls, progress=progress)
        self._door = threading.Lock()  # one opens or closes at a time

    def open(self) -> Self:
        """Start the sandbox now rather than at the first program.

        Raises:
            SandboxFault: it cannot start on this machine.
        """
        self._ready()
        return self

    def close(self, grace_seconds: float = 5.0) -> None:
        """Let running programs finish within the grace, cancel the rest, leave nothing behind."""
        if os.getpid() != self._pid:
            return
        with self._door:
            self._closed = True
            if self._life is not None:
                self._life.stop(grace_seconds)
                self._life.over.result()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close(0.0 if error else 5.0)

    def run(self, code: str, **asked: Unpack[RunOptions]) -> Outcome:
        """Run one program to its end; an interrupt (Ctrl-C) ends it first.

        Raises:
            CallerError: the request must change. Overloaded: it may work later. SandboxFault: we broke.
        """
        life = self._ready()
        return life.call(life.box.run(code, **asked)).result()

    def stream(self, code: str, **asked: Unpack[RunOptions]) -> Generator[Event, None, None]:
        """Yield what a program does while it does it; closing this early ends the program."""
        life = self._ready()
        return self._iterate(life, life.box.stream(code, **asked))

    @overload
    def run_many(
        self,
        programs: Iterable[Program],
        *,
        max_in_flight: int | None = None,
        return_exceptions: Literal[False] = False,
    ) -> Generator[Outcome, None, None]: ...

    @overload
    def run_many(
        self, programs: Iterable[Program], *, max_in_flight: int | None = None, return_exceptions: Literal[True]
    ) -> Generator[Outcome | BelljarError, None, None]: ...

    def run_many(
        self, programs: Iterable[Program], *, max_in_flight: int | None = None, return_exceptions: bool = False
    ) -> Generator[Outcome | BelljarError, None, None]:
        """As AsyncSandbox.run_many; `programs` is read in the calling thread, so it may take its time."""
        life = self._ready()
        width = self._width(max_in_flight)
        gate = asyncio.Semaphore(width)
        source = iter(programs)
        calls: deque[Call[Outcome | BelljarError]] = deque()
        try:
            while True:
                while len(calls) < width or (len(calls) < _AHEAD * width and not calls[0].is_done):
                    program = next(source, _NO_MORE)
                    if program is _NO_MORE:
                        break
                    calls.append(life.call(life.box.run_gated(gate, program, return_exceptions)))
                if not calls:
                    return
                yield calls[0].result()
                calls.popleft()
        finally:
            for call in calls:
                call.cancel()
            for call in calls:
                call.wait()

    def session(self, **asked: Unpack[SessionOptions]) -> Session:
        """An interpreter that stays: `with box.session() as s: s.run("x = 1")`."""
        life = self._ready()
        return Session(life.box.session(**asked), functools.partial(self._answer, life))

    def facts(self) -> Mapping[str, Any]:
        """Numbers for monitoring: what runs, what waits."""
        life = self._ready()
        return life.call(_facts(life.box)).result()

    def _answer(self, life: Life, work: Coroutine[Any, Any, _T]) -> _T:
        """A method, so that the sandbox is not collected while somebody still has a session of it."""
        return life.call(work).result()

    def _iterate(self, life: Life, events: AsyncGenerator[Event, None]) -> Generator[Event, None, None]:
        """A method, so that the sandbox is not collected while somebody still reads from it."""
        try:
            while (event := life.call(_next(events)).result()) is not None:
                yield event
        finally:
            with contextlib.suppress(CallerError):  # closed meanwhile: the program is gone already
                life.call(_end(events)).wait()

    def _ready(self) -> Life:
        self._check_usable()
        if self._life is None:
            with self._door:
                self._check_usable()
                if self._life is None:
                    self._life = self._start()
        return self._life

    def _start(self) -> Life:
        life = Life(AsyncSandbox(settings=self.settings, progress=self._progress))
        weakref.finalize(self, life.abandon)  # when dropped without `close`, or at the interpreter's exit
        try:
            life.opened.result()
        except BaseException:
            life.stop(grace_seconds=0.0)
            concurrent.futures.wait([life.over])
            raise
        return life


async def _facts(box: AsyncSandbox) -> Mapping[str, Any]:
    return box.facts()


async def _next(events: AsyncGenerator[Event, None]) -> Event | None:
    return await anext(events, None)


async def _end(events: AsyncGenerator[Event, None]) -> None:
    await events.aclose()


def _give_up_walls(settings: Settings, walls: tuple[str, ...]) -> Settings:
    if not walls:
        return settings
    checked = load(environ={}, flags={"jail.without_walls": walls}).jail.without_walls
    jail = dataclasses.replace(settings.jail, without_walls=(*settings.jail.without_walls, *checked))
    return dataclasses.replace(settings, jail=jail)


def _unfold(program: object) -> tuple[str, RunOptions]:
    """Take apart one of the programs of `run_many`."""
    if isinstance(program, str):
        return program, {}
    if not isinstance(program, Mapping) or "code" not in program:
        raise InvalidExecution("each program must be a string, or a mapping with 'code' in it", field="programs")
    unknown = program.keys() - RunOptions.__annotations__.keys() - {"code"}
    if unknown:
        raise InvalidExecution(
            f"a program has no {min(map(repr, unknown))}; known are: code, {', '.join(RunOptions.__annotations__)}",
            field="programs",
        )
    asked = {name: value for name, value in program.items() if name != "code"}
    return program["code"], cast(RunOptions, asked)


def _admit(settings: Settings, code: str, asked: RunOptions) -> Execution:
    rest: dict[str, Any] = dict(asked)
    if rest.get("files"):
        rest["files"] = _read_paths(rest["files"], settings.request.files_bytes)
    return admit(settings, ExecutionRequest(code, **rest))


def _contents(files: object) -> Iterable[object]:
    if isinstance(files, Mapping):
        return files.values()
    return files if isinstance(files, Sequence) else ()


def _read_paths(files: object, bytes_max: int) -> object:
    """Replace each Path by what it holds; what is no Path is left for admission to judge."""
    if isinstance(files, Mapping):
        return {name: _read(each, bytes_max) if isinstance(each, Path) else each for name, each in files.items()}
    if isinstance(files, (str, bytes)) or not isinstance(files, Iterable):
        return files
    return [File(path=each.name, content=_read(each, bytes_max)) if isinstance(each, Path) else each for each in files]


def _read(path: Path, bytes_max: int) -> bytes:
    """At most one byte more than is taken: enough for admission to refuse it."""
    try:
        with path.open("rb") as file:
            return file.read(bytes_max + 1)
    except OSError as error:
        raise InvalidExecution(f"files: cannot read {path}: {error.strerror}", field="files") from error
