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
import os
import threading
import warnings
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Literal, Self, TypedDict, TypeVar, Unpack, cast, overload

from belljar.assembly import build_engine
from belljar.contract.errors import BelljarError, CallerError, Draining, InvalidExecution, Overloaded
from belljar.contract.execution import Event, Execution, Limits, Outcome
from belljar.contract.files import File
from belljar.engine.admission import admit
from belljar.engine.execute import Engine
from belljar.settings import Settings, load

_EXIT_SECONDS = 10.0  # how long an interpreter that exits without `close` waits for programs to be gone
_AHEAD = 16  # `run_many` holds this many times `max_in_flight` answers, so that one slow program delays no others

_T = TypeVar("_T")


class Asked(TypedDict, total=False):
    """What may be asked beside the code. `timeout` is in seconds of wall time; a Path among `files` is read here."""

    language: str
    stdin: str | bytes
    args: Sequence[str]
    env: Mapping[str, str] | None
    files: Mapping[str, str | bytes | Path] | Iterable[File | Path] | None
    artifacts: Sequence[str]
    limits: Limits | Mapping[str, float] | None
    timeout: float | None
    memory_mb: float | None
    environment: str


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
            raise CallerError("this sandbox belongs to the process that made it; make a new one after a fork")
        if self._closed:
            raise CallerError("this sandbox is closed; make a new one")

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

    async def run(self, code: str, **asked: Unpack[Asked]) -> Outcome:
        """Run one program to its end; cancelling this ends it.

        Raises:
            CallerError: the request must change. Overloaded: it may work later. SandboxFault: we broke.
        """
        execution = await self._admit(code, asked)
        engine = await self._ready()
        return await engine.run(execution)

    async def stream(self, code: str, **asked: Unpack[Asked]) -> AsyncGenerator[Event, None]:
        """Yield what a program does while it does it; closing this early (`aclose`) ends the program."""
        execution = await self._admit(code, asked)
        engine = await self._ready()
        async with contextlib.aclosing(engine.stream(execution)) as events:
            async for event in events:
                yield event

    @overload
    def run_many(
        self, programs: Iterable[Program], *, max_in_flight: int | None = None, return_exceptions: Literal[False] = False
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
                    program = next(source, None)
                    if program is None:
                        break
                    tasks.append(asyncio.create_task(self._run_gated(gate, program, return_exceptions)))
                if not tasks:
                    return
                outcome = await tasks[0]
                tasks.popleft()
                yield outcome
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _run_gated(
        self, gate: asyncio.Semaphore, program: Program, return_exceptions: bool
    ) -> Outcome | BelljarError:
        async with gate:
            try:
                code, asked = _unfold(program)
                return await self.run(code, **asked)
            except BelljarError as error:
                if return_exceptions:
                    return error
                raise

    async def _admit(self, code: str, asked: Asked) -> Execution:
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
            warnings.warn("an AsyncSandbox was never closed; use 'async with' or close()", ResourceWarning, stacklevel=2)


class Sandbox(_Owned):
    """Runs programs from ordinary code, from any number of threads. Close it, or use `with`."""

    _life: _Life | None = None
    _end_life: weakref.finalize[..., Any] | None = None

    def __init__(
        self,
        *,
        settings: Settings | None = None,
        without_walls: Iterable[str] = (),
        progress: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(settings=settings, without_walls=without_walls, progress=progress)
        self._opening = threading.Lock()

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
        with self._opening:
            self._closed = True
            if self._life is not None and self._end_life is not None:
                self._life.stop(grace_seconds)
                self._life.over.result()
                self._end_life.detach()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close(0.0 if error else 5.0)

    def run(self, code: str, **asked: Unpack[Asked]) -> Outcome:
        """Run one program to its end; an interrupt (Ctrl-C) ends it first.

        Raises:
            CallerError: the request must change. Overloaded: it may work later. SandboxFault: we broke.
        """
        self._check_usable()
        execution = _admit(self.settings, code, asked)
        life = self._ready()
        return life.call(life.engine.run(execution)).result()

    def stream(self, code: str, **asked: Unpack[Asked]) -> Generator[Event, None, None]:
        """Yield what a program does while it does it; closing this early ends the program."""
        self._check_usable()
        execution = _admit(self.settings, code, asked)
        life = self._ready()
        return _iterate(life, life.engine.stream(execution), self)

    @overload
    def run_many(
        self, programs: Iterable[Program], *, max_in_flight: int | None = None, return_exceptions: Literal[False] = False
    ) -> Iterator[Outcome]: ...

    @overload
    def run_many(
        self, programs: Iterable[Program], *, max_in_flight: int | None = None, return_exceptions: Literal[True]
    ) -> Iterator[Outcome | BelljarError]: ...

    def run_many(
        self, programs: Iterable[Program], *, max_in_flight: int | None = None, return_exceptions: bool = False
    ) -> Iterator[Outcome | BelljarError]:
        """Run programs side by side and yield their outcomes in order; they are taken as there is room for them.

        With `return_exceptions`, a program that could not be run yields its error in its place.
        """
        width = self._width(max_in_flight)
        gate = asyncio.Semaphore(width)
        source = iter(programs)
        calls: deque[_Call[Outcome | BelljarError]] = deque()
        try:
            while True:
                while len(calls) < width or (len(calls) < _AHEAD * width and not calls[0].is_done):
                    program = next(source, None)
                    if program is None:
                        break
                    calls.append(self._begin(gate, program, return_exceptions))
                if not calls:
                    return
                outcome = calls[0].result()
                calls.popleft()
                yield outcome
        finally:
            for call in calls:
                call.cancel()
            for call in calls:
                call.wait()
