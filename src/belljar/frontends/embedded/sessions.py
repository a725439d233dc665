"""Sessions inside a Python program: `with box.session() as s: s.run("x = 1"); s.run("x")`.

`AsyncSession` lives on the event loop of its sandbox; `Session` is the same from ordinary threads.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, Unpack

from belljar.contract.errors import CallerError, InvalidExecution, NotFound, Overloaded
from belljar.contract.execution import Event, Execution, Limits, Outcome
from belljar.contract.files import File
from belljar.contract.request import CellOptions, CellRequest, SessionKeywords, SessionRequest
from belljar.contract.sessions import SessionState, WorkFile
from belljar.contract.tools import ALL_TOOLS
from belljar.engine.admission.messages import measure, wrong_type
from belljar.engine.admission.request import admit_cell, admit_session
from belljar.engine.engine import Engine
from belljar.settings import Settings


class SessionOptions(SessionKeywords, total=False):
    """What may be asked of a session. Limits hold for its whole life; `timeout` is each cell's, in seconds."""

    files: Mapping[str, str | bytes] | Iterable[File] | None
    tools: bool | Sequence[str | Callable[..., Any]]  # functions of yours that its cells may call; names of tools


class _Loan:
    """Functions that a session and its branches may call; taken back when the last of them is closed."""

    def __init__(self, engine: Engine, given: bool | Sequence[str | Callable[..., Any]]) -> None:
        self._stack = contextlib.ExitStack()
        self._holders = 1
        self.keys: tuple[str, ...] = ()
        if given is True:
            self.keys = (ALL_TOOLS,)
        elif given:
            if isinstance(given, str) or engine.tools is None:
                raise InvalidExecution("tools must be a list of functions and of names, or True for all", field="tools")
            self.keys = self._stack.enter_context(engine.tools.lending(given))

    def share(self) -> Self:
        self._holders += 1
        return self

    def give_back(self) -> None:
        self._holders -= 1
        if not self._holders:
            self._stack.close()


def refuse_unknown(call: str, given: Mapping[str, object], known: type) -> None:
    """Raise TypeError, as Python itself would, for a keyword that `known` does not have."""
    for name in given:
        if name not in known.__annotations__:
            raise TypeError(f"{call}() got an unexpected keyword argument {name!r}")


class AsyncSession:
    """One session, from the event loop of its sandbox. Close it, or use `async with`."""

    def __init__(
        self, settings: Settings, ready: Callable[[], Awaitable[Engine]], asked: SessionOptions, opened: str = ""
    ) -> None:
        self._settings = settings
        self._ready = ready
        self._asked = asked
        self.id = opened
        self._limits: Limits = settings.default_limits
        self._loan: _Loan | None = None

    async def open(self) -> Self:
        """Open it now; `async with` does, and so does `await` of the session itself."""
        if not self.id:
            engine = await self._ready()
            asked: dict[str, Any] = dict(self._asked)
            self._loan = _Loan(engine, asked.pop("tools", ()))
            try:
                request = SessionRequest(**asked, tools=self._loan.keys)
                state = await engine.sessions.open(admit_session(self._settings, request))
            except BaseException:
                self._end_loan()
                raise
            self.id, self._limits = state.id, state.limits
        return self

    async def close(self) -> None:
        """End it, with whatever runs in it; one that has ended already is closed."""
        if self.id:
            engine = await self._ready()
            with contextlib.suppress(NotFound):
                await engine.sessions.close("", self.id)
        self._end_loan()

    def _end_loan(self) -> None:
        if self._loan is not None:
            self._loan.give_back()
            self._loan = None

    def __await__(self) -> Generator[Any, None, Self]:
        return self.open().__await__()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def run(self, code: str, **asked: Unpack[CellOptions]) -> Outcome:
        """Run one cell to its end; cancelling this interrupts it.

        Raises:
            SessionEnded: it is gone; the reason says why. SessionBusy: a cell runs, and `wait` is false.
        """
        refuse_unknown("run", asked, CellOptions)
        engine = await self._engine()
        return await engine.sessions.run("", self.id, self._admit(code, asked), waits=_waits(asked))

    async def stream(self, code: str, **asked: Unpack[CellOptions]) -> AsyncGenerator[Event, None]:
        """Yield what a cell does while it does it; closing this early (`aclose`) interrupts the cell."""
        refuse_unknown("stream", asked, CellOptions)
        engine = await self._engine()
        events = engine.sessions.stream("", self.id, self._admit(code, asked), waits=_waits(asked))
        async with contextlib.aclosing(events):
            async for event in events:
                yield event

    async def branch(self, count: int = 1, *, reseed: bool = True) -> list[AsyncSession]:
        """Independent copies of the live state, to be closed like any session.

        Raises:
            CannotBranch: the state cannot be copied now; the message says why.
        """
        engine = await self._engine()
        states = await engine.sessions.branch("", self.id, count, reseed=reseed)
        return [self._twin(state) for state in states]

    def _twin(self, state: SessionState) -> AsyncSession:
        twin = AsyncSession(self._settings, self._ready, self._asked, opened=state.id)
        twin._limits = state.limits
        twin._loan = None if self._loan is None else self._loan.share()
        return twin

    async def interrupt(self) -> bool:
        """KeyboardInterrupt in the running cell; False when none runs."""
        return (await self._engine()).sessions.interrupt("", self.id)

    async def state(self) -> SessionState:
        """What is known of it from outside."""
        return (await self._engine()).sessions.get("", self.id)

    async def write_file(self, path: str, content: str | bytes) -> None:
        """Make or replace a file in the work directory."""
        await (await self._engine()).sessions.write_file("", self.id, path, _read_content(content))

    async def read_file(self, path: str) -> bytes:
        """The content of a file in the work directory."""
        return await (await self._engine()).sessions.read_file("", self.id, path)

    async def delete_file(self, path: str) -> None:
        """Remove a file of the work directory."""
        await (await self._engine()).sessions.delete_file("", self.id, path)

    async def files(self) -> Sequence[WorkFile]:
        """Every regular file of the work directory."""
        return await (await self._engine()).sessions.list_files("", self.id)

    def _admit(self, code: str, asked: CellOptions) -> Execution:
        rest: dict[str, Any] = {name: value for name, value in asked.items() if name not in ("wait", "waits")}
        return admit_cell(self._settings, self._limits, CellRequest(code, **rest))

    async def _engine(self) -> Engine:
        if not self.id:
            raise CallerError("this session is not open yet; use 'with', or open() it")
        return await self._ready()


class Session:
    """One session, from ordinary code. Close it, or use `with`."""

    def __init__(self, twin: AsyncSession, call: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._twin = twin
        self._call = call

    @property
    def id(self) -> str:
        """Its id; empty before it is open."""
        return self._twin.id

    def open(self) -> Self:
        """Open it now; `with` does."""
        self._call(self._twin.open())
        return self

    def close(self) -> None:
        """End it, with whatever runs in it; one that has ended already is closed."""
        self._call(self._twin.close())

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def run(self, code: str, **asked: Unpack[CellOptions]) -> Outcome:
        """Run one cell to its end; an interrupt of this thread (Ctrl-C) interrupts it."""
        outcome: Outcome = self._call(self._twin.run(code, **asked))
        return outcome

    def stream(self, code: str, **asked: Unpack[CellOptions]) -> Generator[Event, None, None]:
        """Yield what a cell does while it does it; closing this early interrupts the cell."""
        events = self._twin.stream(code, **asked)
        try:
            while (event := self._call(_next(events))) is not None:
                yield event
        finally:
            with contextlib.suppress(CallerError, Overloaded):  # the sandbox was closed meanwhile: the cell is gone
                self._call(_end(events))

    def branch(self, count: int = 1, *, reseed: bool = True) -> list[Session]:
        """Independent copies of the live state, to be closed like any session."""
        return [Session(twin, self._call) for twin in self._call(self._twin.branch(count, reseed=reseed))]

    def interrupt(self) -> bool:
        """KeyboardInterrupt in the running cell; False when none runs."""
        return bool(self._call(self._twin.interrupt()))

    def state(self) -> SessionState:
        """What is known of it from outside."""
        state: SessionState = self._call(self._twin.state())
        return state

    def write_file(self, path: str, content: str | bytes) -> None:
        """Make or replace a file in the work directory."""
        self._call(self._twin.write_file(path, content))

    def read_file(self, path: str) -> bytes:
        """The content of a file in the work directory."""
        return bytes(self._call(self._twin.read_file(path)))

    def delete_file(self, path: str) -> None:
        """Remove a file of the work directory."""
        self._call(self._twin.delete_file(path))

    def files(self) -> list[WorkFile]:
        """Every regular file of the work directory."""
        return list(self._call(self._twin.files()))


def _waits(asked: CellOptions) -> bool:
    return asked.get("wait", True) and asked.get("waits", True)


def _read_content(content: object) -> bytes:
    if isinstance(content, str):
        measure("content", content)
        return content.encode()
    if not isinstance(content, (bytes, bytearray, memoryview)):
        raise wrong_type("content", "a string or bytes", content)
    return bytes(content)


async def _next(events: AsyncGenerator[Event, None]) -> Event | None:
    return await anext(events, None)


async def _end(events: AsyncGenerator[Event, None]) -> None:
    await events.aclose()
