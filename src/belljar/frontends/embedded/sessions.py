"""Sessions inside a Python program: `with box.session() as s: s.run("x = 1"); s.run("x")`.

`AsyncSession` lives on the event loop of its sandbox; `Session` is the same for blocking code.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from belljar.contract.errors import CallerError, InvalidExecution, NotFound
from belljar.contract.execution import Event, Execution, Limits, Outcome
from belljar.contract.files import File
from belljar.contract.request import CellOptions, CellRequest, SessionKeywords, SessionRequest
from belljar.contract.sessions import SessionState, WorkFile
from belljar.contract.tools import ALL_TOOLS
from belljar.engine.admission.messages import measure, wrong_type
from belljar.engine.admission.request import admit_cell, admit_session
from belljar.engine.engine import Engine
from belljar.portal import Portal, refuse_unknown
from belljar.settings import Settings

_T = TypeVar("_T")


class SessionOptions(SessionKeywords, total=False):
    """The options of a session. Limits hold for its whole life; `timeout` is for each cell, in seconds."""

    files: Mapping[str, str | bytes] | Iterable[File] | None
    tools: bool | Sequence[str | Callable[..., Any]]  # functions that its cells may call, or names of tools


class _SharedTools:
    """Functions that a session and its branches may call, until the last of them is closed."""

    def __init__(self) -> None:
        self.stack = contextlib.ExitStack()
        self.names: tuple[str, ...] = ()
        self._users = 1

    def share(self) -> Self:
        self._users += 1
        return self

    def release(self) -> None:
        self._users -= 1
        if not self._users:
            self.stack.close()


async def lend_tools(
    ready: Callable[[], Awaitable[Engine]],
    tools: bool | Sequence[str | Callable[..., Any]],
    stack: contextlib.ExitStack,
) -> tuple[str, ...]:
    """Make the functions among `tools` callable until `stack` is closed; return the names of all of them."""
    if not tools:
        return ()
    if tools is True:
        return (ALL_TOOLS,)
    host = None if isinstance(tools, str) or not isinstance(tools, Sequence) else (await ready()).tools
    if host is None:
        raise InvalidExecution("tools must be a list of functions and of names, or True for all", field="tools")
    return stack.enter_context(host.lending(tools))


class AsyncSession:
    """One session, on the event loop of its sandbox. Close it, or use `async with`."""

    def __init__(
        self, settings: Settings, ready: Callable[[], Awaitable[Engine]], options: SessionOptions, opened: str = ""
    ) -> None:
        self._settings = settings
        self._ready = ready
        self._options = options
        self.id = opened
        self._limits: Limits = settings.default_limits
        self._tools: _SharedTools | None = None

    async def open(self) -> Self:
        """Open it now; `async with` does, and so does `await` of the session itself."""
        if not self.id:
            engine = await self._ready()
            options: dict[str, Any] = dict(self._options)
            self._tools = tools = _SharedTools()
            try:
                tools.names = await lend_tools(self._ready, options.pop("tools", ()), tools.stack)
                request = SessionRequest(**options, tools=tools.names)
                state = await engine.sessions.open(admit_session(self._settings, request))
            except BaseException:
                self._release_tools()
                raise
            self.id, self._limits = state.id, state.limits
        return self

    async def close(self) -> None:
        """End the session and its running cell; does nothing if it has ended already."""
        if self.id:
            engine = await self._ready()
            with contextlib.suppress(NotFound):
                await engine.sessions.close("", self.id)
        self._release_tools()

    def _release_tools(self) -> None:
        if self._tools is not None:
            self._tools.release()
            self._tools = None

    def __await__(self) -> Generator[Any, None, Self]:
        return self.open().__await__()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def run(self, code: str, **options: Unpack[CellOptions]) -> Outcome:
        """Run one cell to its end; cancelling this interrupts it.

        Raises:
            SessionEnded: it has ended; the error says why. SessionBusy: another cell runs, and `wait` is false.
        """
        refuse_unknown("run", options, CellOptions)
        engine = await self._engine()
        return await engine.sessions.run("", self.id, self._admit(code, options), waits=_waits(options))

    async def stream(self, code: str, **options: Unpack[CellOptions]) -> AsyncGenerator[Event, None]:
        """Yield the events of a cell as they happen; closing this early (`aclose`) interrupts the cell."""
        refuse_unknown("stream", options, CellOptions)
        engine = await self._engine()
        events = engine.sessions.stream("", self.id, self._admit(code, options), waits=_waits(options))
        async with contextlib.aclosing(events):
            async for event in events:
                yield event

    async def branch(self, count: int = 1, *, reseed: bool = True) -> list[AsyncSession]:
        """Make independent copies of the session; close each of them like any session.

        Raises:
            CannotBranch: the state cannot be copied now; the message says why.
        """
        engine = await self._engine()
        states = await engine.sessions.branch("", self.id, count, reseed=reseed)
        return [self._twin(state) for state in states]

    def _twin(self, state: SessionState) -> AsyncSession:
        twin = AsyncSession(self._settings, self._ready, self._options, opened=state.id)
        twin._limits = state.limits
        twin._tools = None if self._tools is None else self._tools.share()
        return twin

    async def interrupt(self) -> bool:
        """Raise KeyboardInterrupt in the running cell; False if no cell runs."""
        return (await self._engine()).sessions.interrupt("", self.id)

    async def state(self) -> SessionState:
        """Return its current state: busy or idle, cells run, memory, when it expires."""
        return (await self._engine()).sessions.get("", self.id)

    async def write_file(self, path: str, content: str | bytes) -> None:
        """Create or replace a file in the work directory."""
        await (await self._engine()).sessions.write_file("", self.id, path, _read_content(content))

    async def read_file(self, path: str) -> bytes:
        """Return the content of a file in the work directory."""
        return await (await self._engine()).sessions.read_file("", self.id, path)

    async def delete_file(self, path: str) -> None:
        """Delete a file in the work directory."""
        await (await self._engine()).sessions.delete_file("", self.id, path)

    async def files(self) -> Sequence[WorkFile]:
        """List the regular files in the work directory, at any depth."""
        return await (await self._engine()).sessions.list_files("", self.id)

    def _admit(self, code: str, options: CellOptions) -> Execution:
        rest: dict[str, Any] = {name: value for name, value in options.items() if name not in ("wait", "waits")}
        return admit_cell(self._settings, self._limits, CellRequest(code, **rest))

    async def _engine(self) -> Engine:
        if not self.id:
            raise CallerError("this session is not open yet; use 'with', or open() it")
        return await self._ready()


class Session:
    """One session, for blocking code. Close it, or use `with`."""

    def __init__(self, twin: AsyncSession, portal: Portal[Any], owner: object) -> None:
        self._twin = twin
        self._portal = portal
        self._owner = owner  # the sandbox: not collected before its sessions

    @property
    def id(self) -> str:
        """The id of the session; empty before it is open."""
        return self._twin.id

    def open(self) -> Self:
        """Open it now; `with` does."""
        self._call(self._twin.open())
        return self

    def close(self) -> None:
        """End the session and its running cell; does nothing if it has ended already."""
        self._call(self._twin.close())

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def run(self, code: str, **options: Unpack[CellOptions]) -> Outcome:
        """Run one cell to its end; an interrupt (Ctrl-C) interrupts the cell."""
        return self._call(self._twin.run(code, **options))

    def stream(self, code: str, **options: Unpack[CellOptions]) -> Generator[Event, None, None]:
        """Yield the events of a cell as they happen; closing this early interrupts the cell."""
        yield from self._portal.iterate(self._twin.stream(code, **options), owner=self)

    def branch(self, count: int = 1, *, reseed: bool = True) -> list[Session]:
        """Make independent copies of the session; close each of them like any session."""
        return [
            Session(twin, self._portal, self._owner) for twin in self._call(self._twin.branch(count, reseed=reseed))
        ]

    def interrupt(self) -> bool:
        """Raise KeyboardInterrupt in the running cell; False if no cell runs."""
        return self._call(self._twin.interrupt())

    def state(self) -> SessionState:
        """Return its current state: busy or idle, cells run, memory, when it expires."""
        return self._call(self._twin.state())

    def write_file(self, path: str, content: str | bytes) -> None:
        """Create or replace a file in the work directory."""
        self._call(self._twin.write_file(path, content))

    def read_file(self, path: str) -> bytes:
        """Return the content of a file in the work directory."""
        return self._call(self._twin.read_file(path))

    def delete_file(self, path: str) -> None:
        """Delete a file in the work directory."""
        self._call(self._twin.delete_file(path))

    def files(self) -> list[WorkFile]:
        """List the regular files in the work directory, at any depth."""
        return list(self._call(self._twin.files()))

    def _call(self, work: Coroutine[Any, Any, _T]) -> _T:
        return self._portal.call(work).result()


def _waits(options: CellOptions) -> bool:
    return options.get("wait", True) and options.get("waits", True)


def _read_content(content: object) -> bytes:
    if isinstance(content, str):
        measure("content", content)
        return content.encode()
    if not isinstance(content, (bytes, bytearray, memoryview)):
        raise wrong_type("content", "a string or bytes", content)
    return bytes(content)
