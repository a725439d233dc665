"""Sessions on a server: `Session` for blocking code, `AsyncSession` for event loops."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Generator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self, Unpack

from belljar.client.request import SessionOptions, build_aside, build_cell, build_session, read_content
from belljar.client.routes import SessionCalls
from belljar.contract.errors import BelljarError, NotFound
from belljar.contract.execution import Event, Outcome
from belljar.contract.request import CellOptions
from belljar.contract.sessions import SessionState, WorkFile

if TYPE_CHECKING:
    from belljar.client.async_client import AsyncClient
    from belljar.client.client import Client


class _Handle:
    """What `Session` and `AsyncSession` have in common."""

    def __init__(self, state: SessionState, room_seconds: float) -> None:
        self.id = state.id
        self.opened = state  # its state when this object was made
        self._calls = SessionCalls(id=state.id, room_seconds=room_seconds, wall_seconds=state.limits.wall_seconds)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r})"


class Session(_Handle):
    """An interpreter on the server that keeps its state. Close it, or use `with`."""

    def __init__(self, client: Client, state: SessionState) -> None:
        super().__init__(state, client._calls.room_seconds)
        self._client = client

    def open(self) -> Self:
        """Return the session, which is open already; a session of a Sandbox needs this call."""
        return self

    def run(self, code: str, **options: Unpack[CellOptions]) -> Outcome:
        """Run one cell to its end; an interrupt (Ctrl-C) hangs up, which interrupts the cell.

        Raises:
            SessionEnded: the session has ended; `details["reason"]` says why. SessionBusy: with `wait=False`.
            AnswerLost: the cell may have run; its outcome is unknown.
        """
        return self._client._request(self._calls.run(build_cell(code, **options)))

    def stream(self, code: str, **options: Unpack[CellOptions]) -> Generator[Event, None, None]:
        """Yield the events of a cell as they happen; closing this early hangs up, which interrupts the cell."""
        yield from self._client._events(self._calls.stream(build_cell(code, **options)))

    def branch(self, count: int = 1, *, reseed: bool = True) -> Branches:
        """Make independent copies of the session; `with` closes them all, or close each of them.

        Raises:
            CannotBranch: the state cannot be copied now; the message says why.
        """
        states = self._client._request(self._calls.branch(count, reseed))
        return Branches(Session(self._client, state) for state in states)

    def interrupt(self) -> bool:
        """Raise KeyboardInterrupt in the cell that another thread runs; False if no cell runs."""
        return self._client._request(self._calls.interrupt())

    def upload(self, path: str, content: str | bytes | Path) -> None:
        """Create or replace a file in the work directory; a Path is read here."""
        self._client._request(self._calls.upload(path, read_content(content)))

    def download(self, path: str) -> bytes:
        """Return the content of a file in the work directory. Raises FileNotInSession."""
        return self._client._request(self._calls.download(path))

    def delete(self, path: str) -> None:
        """Delete a file in the work directory. Raises FileNotInSession."""
        self._client._request(self._calls.delete(path))

    def files(self) -> list[WorkFile]:
        """List the files in the work directory, at any depth."""
        return self._client._request(self._calls.files())

    write_file, read_file, delete_file = upload, download, delete  # their names in a Sandbox

    def state(self) -> SessionState:
        """Return its current state: busy or idle, cells run, memory, when it expires."""
        return self._client._request(self._calls.state())

    def close(self) -> None:
        """End the session and everything it started; does nothing if it has ended already."""
        with contextlib.suppress(NotFound):
            self._client._request(self._calls.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with _keeping(error):
            self.close()


class Branches(list[Session]):
    """Sessions made by one `branch`; `with` closes them all."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with _keeping(error), contextlib.ExitStack() as opened:
            for each in self:
                opened.callback(each.close)


class AsyncSession(_Handle):
    """An interpreter on the server that keeps its state. Close it, or use `async with`."""

    def __init__(self, client: AsyncClient, state: SessionState) -> None:
        super().__init__(state, client._calls.room_seconds)
        self._client = client

    async def open(self) -> Self:
        """Return the session, which is open already; a session of a Sandbox needs this call."""
        return self

    async def run(self, code: str, **options: Unpack[CellOptions]) -> Outcome:
        """Run one cell to its end; cancelling this interrupts it.

        Raises:
            SessionEnded: the session has ended; `details["reason"]` says why. SessionBusy: with `wait=False`.
            AnswerLost: the cell may have run; its outcome is unknown.
        """
        return await self._client._request(self._calls.run(build_cell(code, **options)))

    def stream(self, code: str, **options: Unpack[CellOptions]) -> AsyncGenerator[Event, None]:
        """Yield the events of a cell as they happen; closing this early (`aclose`) interrupts the cell."""
        return self._client._events(self._calls.stream(build_cell(code, **options)))

    async def branch(self, count: int = 1, *, reseed: bool = True) -> AsyncBranches:
        """Make independent copies of the session; `async with` closes them all, or close each of them.

        Raises:
            CannotBranch: the state cannot be copied now; the message says why.
        """
        states = await self._client._request(self._calls.branch(count, reseed))
        return AsyncBranches(AsyncSession(self._client, state) for state in states)

    async def interrupt(self) -> bool:
        """Raise KeyboardInterrupt in the cell that another task runs; False if no cell runs."""
        return await self._client._request(self._calls.interrupt())

    async def upload(self, path: str, content: str | bytes | Path) -> None:
        """Create or replace a file in the work directory; a Path is read here."""
        is_local = isinstance(content, Path)
        raw = await asyncio.to_thread(read_content, content) if is_local else read_content(content)
        await self._client._request(self._calls.upload(path, raw))

    async def download(self, path: str) -> bytes:
        """Return the content of a file in the work directory. Raises FileNotInSession."""
        return await self._client._request(self._calls.download(path))

    async def delete(self, path: str) -> None:
        """Delete a file in the work directory. Raises FileNotInSession."""
        await self._client._request(self._calls.delete(path))

    async def files(self) -> list[WorkFile]:
        """List the files in the work directory, at any depth."""
        return await self._client._request(self._calls.files())

    write_file, read_file, delete_file = upload, download, delete  # their names in a Sandbox

    async def state(self) -> SessionState:
        """Return its current state: busy or idle, cells run, memory, when it expires."""
        return await self._client._request(self._calls.state())

    async def close(self) -> None:
        """End the session and everything it started; does nothing if it has ended already."""
        with contextlib.suppress(NotFound):
            await self._client._request(self._calls.close())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with _keeping(error):
            await self.close()


class AsyncBranches(list[AsyncSession]):
    """Sessions made by one `branch`; `async with` closes them all."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with _keeping(error):
            async with contextlib.AsyncExitStack() as opened:
                for each in self:
                    opened.push_async_callback(each.close)


class Opening:
    """A session that opens when it is awaited, or entered with `async with`."""

    def __init__(self, client: AsyncClient, options: SessionOptions) -> None:
        self._client = client
        self._options = options
        self._session: AsyncSession | None = None

    def __await__(self) -> Generator[object, None, AsyncSession]:
        return self.open().__await__()

    async def __aenter__(self) -> AsyncSession:
        self._session = await self.open()
        return self._session

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.__aexit__(kind, error, traceback)

    async def open(self) -> AsyncSession:
        """Open it now, as `await` does."""
        body = await build_aside(build_session, reads=[self._options], **self._options)
        return AsyncSession(self._client, await self._client._request(self._client._calls.open_session(body)))


@contextlib.contextmanager
def _keeping(error: BaseException | None) -> Generator[None, None, None]:
    """Let the error inside a `with` block win over the error of closing the session after it."""
    try:
        yield
    except BelljarError:
        if error is None:
            raise
