"""Belljar inside a Python program: `with belljar.Sandbox() as box: box.run("print(1)")`.

`AsyncSandbox` lives on the event loop that opens it. `Sandbox` keeps an event loop in a thread of its own, so that any
number of threads can run programs at once, even in a program with its own event loop, such as a notebook.

A sandbox belongs to the process that made it. A forked child inherits its descriptors but not its threads, and would
write into the middle of its parent's messages; it gets an error instead.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import threading
import warnings
import weakref
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, Unpack, cast, overload

from belljar.assembly import build_engine
from belljar.contract.errors import BelljarError, CallerError, InvalidExecution
from belljar.contract.execution import Event, Execution, Outcome
from belljar.contract.files import File
from belljar.contract.request import ExecutionRequest, ProgramKeywords
from belljar.engine.admission.request import admit
from belljar.engine.engine import Engine
from belljar.frontends.embedded.sessions import AsyncSession, Session, SessionOptions, lend_tools
from belljar.portal import CLOSED, FORKED, Portal, Program, refuse_unknown, run_many, split_program
from belljar.settings import Settings, load


class RunOptions(ProgramKeywords, total=False):
    """The options of a program. `timeout` is in seconds of wall time; a Path among `files` is read here."""

    files: Mapping[str, str | bytes | Path] | Iterable[File | Path] | None
    tools: bool | Sequence[str | Callable[..., Any]]  # functions that the program may call, or names of tools


class _Owned:
    """The settings of a sandbox, and the process that it belongs to."""

    def __init__(
        self,
        *,
        settings: Settings | None = None,
        without_walls: Iterable[str] = (),
        progress: Callable[[str], None] | None = None,
    ) -> None:
        """Nothing is started yet. By default, settings are read from the environment.

        Raises:
            InvalidSettings: a setting is invalid, or `without_walls` has an unknown name.
        """
        self.settings = _give_up_walls(load() if settings is None else settings, tuple(without_walls))
        self._progress = progress
        self._pid = os.getpid()
        self._closed = False

    def _check_usable(self) -> None:
        if os.getpid() != self._pid:
            raise CallerError(FORKED.format("sandbox"))
        if self._closed:
            raise CallerError(CLOSED.format("sandbox"))

    def _width(self, max_in_flight: int | None) -> int:
        # By default enough that a freed slot finds the next program waiting.
        return 2 * self.settings.pool.max_running if max_in_flight is None else max_in_flight


class AsyncSandbox(_Owned):
    """Runs programs on the event loop that first uses it. Close it, or use `async with`."""

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
        """Let running programs finish within the grace period, cancel the rest, and clean up."""
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

    async def run(self, code: str, **options: Unpack[RunOptions]) -> Outcome:
        """Run one program to its end; cancelling this ends it.

        Raises:
            CallerError: the request must change. Overloaded: it may work later. SandboxFault: Belljar failed.
        """
        refuse_unknown("run", options, RunOptions)
        if options.get("tools"):
            with contextlib.ExitStack() as stack:
                options["tools"] = await lend_tools(self._ready, options["tools"], stack)
                return await self._run(code, options)
        return await self._run(code, options)

    async def _run(self, code: str, options: RunOptions) -> Outcome:
        execution = await self._admit(code, options)
        engine = await self._ready()
        return await engine.run(execution)

    async def stream(self, code: str, **options: Unpack[RunOptions]) -> AsyncGenerator[Event, None]:
        """Yield the events of a program as they happen; closing this early (`aclose`) ends the program."""
        refuse_unknown("stream", options, RunOptions)
        # Not an asynchronous context manager: at exit, the interpreter would close it and this generator concurrently.
        with contextlib.ExitStack() as stack:
            options["tools"] = await lend_tools(self._ready, options.get("tools", ()), stack)
            execution = await self._admit(code, options)
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
        """Run programs concurrently and yield their outcomes in order; programs are taken as there is room for them.

        With `return_exceptions`, a program that could not be run yields its error in place of an outcome.
        """
        outcomes = run_many(self._run_program, programs, self._width(max_in_flight), return_exceptions)
        async with contextlib.aclosing(outcomes):
            async for outcome in outcomes:
                yield outcome

    async def _run_program(self, program: object) -> Outcome:
        code, fields = split_program(program, RunOptions)
        return await self.run(code, **cast(RunOptions, fields))

    def session(self, **options: Unpack[SessionOptions]) -> AsyncSession:
        """A session: an interpreter that keeps its state. `async with box.session() as s: await s.run("x = 1")`."""
        self._check_usable()
        refuse_unknown("session", options, SessionOptions)
        return AsyncSession(self.settings, self._ready, options)

    def facts(self) -> Mapping[str, Any]:
        """Numbers for monitoring, such as running and queued programs."""
        self._check_usable()
        return {} if self._engine is None else self._engine.facts()

    async def _admit(self, code: str, options: RunOptions) -> Execution:
        self._check_usable()
        if any(isinstance(each, Path) for each in _contents(options.get("files"))):
            return await asyncio.to_thread(_admit, self.settings, code, options)
        return _admit(self.settings, code, options)

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
    """Runs programs for blocking code, in any number of threads. Close it, or use `with`."""

    _portal: Portal[AsyncSandbox] | None = None

    def __init__(
        self,
        *,
        settings: Settings | None = None,
        without_walls: Iterable[str] = (),
        progress: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(settings=settings, without_walls=without_walls, progress=progress)
        self._door = threading.Lock()  # only one thread opens or closes it at a time

    def open(self) -> Self:
        """Start the sandbox now rather than at the first program.

        Raises:
            SandboxFault: it cannot start on this machine.
        """
        self._ready()
        return self

    def close(self, grace_seconds: float = 5.0) -> None:
        """Let running programs finish within the grace period, cancel the rest, and clean up."""
        if os.getpid() != self._pid:
            return
        with self._door:
            self._closed = True
            if self._portal is not None:
                self._portal.stop(grace_seconds)
                self._portal.over.result()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close(0.0 if error else 5.0)

    def run(self, code: str, **options: Unpack[RunOptions]) -> Outcome:
        """Run one program to its end; an interrupt (Ctrl-C) ends it first.

        Raises:
            CallerError: the request must change. Overloaded: it may work later. SandboxFault: Belljar failed.
        """
        portal = self._ready()
        return portal.call(portal.target.run(code, **options)).result()

    def stream(self, code: str, **options: Unpack[RunOptions]) -> Generator[Event, None, None]:
        """Yield the events of a program as they happen; closing this early ends the program."""
        portal = self._ready()
        return portal.iterate(portal.target.stream(code, **options), owner=self)

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
        """As AsyncSandbox.run_many; `programs` is read in the calling thread, so it may block."""
        portal = self._ready()
        run = portal.target._run_program
        yield from portal.run_many(run, programs, self._width(max_in_flight), return_exceptions)

    def session(self, **options: Unpack[SessionOptions]) -> Session:
        """A session: an interpreter that keeps its state. `with box.session() as s: s.run("x = 1")`."""
        portal = self._ready()
        return Session(portal.target.session(**options), portal, owner=self)

    def facts(self) -> Mapping[str, Any]:
        """Numbers for monitoring, such as running and queued programs."""
        portal = self._ready()
        return portal.call(_facts(portal.target)).result()

    def _ready(self) -> Portal[AsyncSandbox]:
        self._check_usable()
        if self._portal is None:
            with self._door:
                self._check_usable()
                if self._portal is None:
                    self._portal = self._start()
        return self._portal

    def _start(self) -> Portal[AsyncSandbox]:
        portal = Portal(AsyncSandbox(settings=self.settings, progress=self._progress), "sandbox")
        weakref.finalize(self, portal.abandon)  # when dropped without `close`, or at the interpreter's exit
        portal.wait_until_open()
        return portal


async def _facts(box: AsyncSandbox) -> Mapping[str, Any]:
    return box.facts()


def _give_up_walls(settings: Settings, walls: tuple[str, ...]) -> Settings:
    if not walls:
        return settings
    checked = load(environ={}, flags={"jail.without_walls": walls}).jail.without_walls
    jail = dataclasses.replace(settings.jail, without_walls=(*settings.jail.without_walls, *checked))
    return dataclasses.replace(settings, jail=jail)


def _admit(settings: Settings, code: str, options: RunOptions) -> Execution:
    rest: dict[str, Any] = dict(options)
    if rest.get("files"):
        rest["files"] = _read_paths(rest["files"], settings.request.files_bytes)
    return admit(settings, ExecutionRequest(code, **rest))


def _contents(files: object) -> Iterable[object]:
    if isinstance(files, Mapping):
        return files.values()
    return files if isinstance(files, Sequence) else ()


def _read_paths(files: object, bytes_max: int) -> object:
    """Replace each Path by its content; everything else is left for admission to check."""
    if isinstance(files, Mapping):
        return {name: _read(each, bytes_max) if isinstance(each, Path) else each for name, each in files.items()}
    if isinstance(files, (str, bytes)) or not isinstance(files, Iterable):
        return files
    return [File(path=each.name, content=_read(each, bytes_max)) if isinstance(each, Path) else each for each in files]


def _read(path: Path, bytes_max: int) -> bytes:
    """Read at most one byte more than is allowed: enough for admission to refuse it."""
    try:
        with path.open("rb") as file:
            return file.read(bytes_max + 1)
    except OSError as error:
        raise InvalidExecution(f"files: cannot read {path}: {error.strerror}", field="files") from error
