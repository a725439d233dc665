"""A session on a server, held by ordinary code or by an event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Generator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self, Unpack

from belljar.client.request import build_aside
from belljar.client.session_request import (
    SessionCalls,
    SessionOptions,
    build_cell,
    build_session,
    read_content,
)
from belljar.contract.errors import BelljarError, NotFound
from belljar.contract.execution import Event, Outcome
from belljar.contract.request import CellOptions
from belljar.contract.sessions import SessionState, WorkFile

if TYPE_CHECKING:
    from belljar.client.async_client import AsyncClient
    from belljar.client.client import Client


class _Handle:
    """What both kinds know of their session."""

    def __init__(self, state: SessionState, room_seconds: float) -> None:
        self.id = state.id
        self.opened = state  # as it was when this handle was made
        self._calls = SessionCalls(id=state.id, room_seconds=room_seconds, wall_seconds=state.limits.wall_seconds)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r})"


class Session(_Handle):
    """An interpreter that stays, on the server. Close it, or use `with`."""

    def __init__(self, client: Client, state: SessionState) -> None:
        super().__init__(state, client._calls.room_seconds)
        self._client = client

    def open(self) -> Self:
        """Nothing: it is open. A session of a Sandbox is opened so."""
        return self

    def run(self, code: str, **asked: Unpack[CellOptions]) -> Outcome:
        """Run one cell to its end; an interrupt (Ctrl-C) hangs up, which interrupts the cell.

        Raises:
            SessionEnded: the session is gone, and `details["reason"]` says why. SessionBusy: with `wait=False`.
            AnswerLost: the cell may have run, and nobody can say how it went.
        """
        return self._client._request(self._calls.run(build_cell(code, **asked)))

    def stream(self, code: str, **asked: Unpack[CellOptions]) -> Generator[Event, None, None]:
        """Yield what a cell does while it does it; closing this early hangs up, which interrupts the cell."""
        yield from self._client._events(self._calls.stream(build_cell(code, **asked)))

    def branch(self, count: int = 1, *, reseed: bool = True) -> Branches:
        """Copies of the live state: sessions of their own, closed by `with`, or one by one.

        Raises:
            CannotBranch: the state cannot be copied now; the message says why.
        """
        states = self._client._request(self._calls.branch(count, reseed))
        return Branches(Session(self._client, state) for state in states)

    def interrupt(self) -> bool:
        """KeyboardInterrupt in the cell that another thread runs; False when none does."""
        return self._client._request(self._calls.interrupt())

    def upload(self, path: str, content: str | bytes | Path) -> None:
        """Make or replace a file in the work directory; a Path is read here."""
        self._client._request(self._calls.upload(path, read_content(content)))

    def download(self, path: str) -> bytes:
        """What is in a file of the work directory. Raises FileNotInSession."""
        return self._client._request(self._calls.download(path))

    def delete(self, path: str) -> None:
        """Delete a file of the work directory. Raises FileNotInSession."""
        self._client._request(self._calls.delete(path))

    def files(self) -> list[WorkFile]:
        """The files of the work directory, at any depth."""
        return self._client._request(self._calls.files())

    write_file, read_file, delete_file = upload, download, delete  # by the names they have in a Sandbox

    def state(self) -> SessionState:
        """How it is now: busy or idle, cells run, memory, when it expires."""
        return self._client._request(self._calls.state())

    def close(self) -> None:
        """End it and everything it started; one that has ended already is fine."""
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
    """An interpreter that stays, on the server. Close it, or use `async with`."""

    def __init__(self, client: AsyncClient, state: SessionState) -> None:
        super().__init__(state, client._calls.room_seconds)
        self._client = client

    async def open(self) -> Self:
        """Nothing: it is open. A session of a Sandbox is opened so."""
        return self

    async def run(self, code: str, **asked: Unpack[CellOptions]) -> Outcome:
        """Run one cell to its end; cancelling this interrupts it.

        Raises:
            SessionEnded: the session is gone, and `details["reason"]` says why. SessionBusy: with `wait=False`.
            AnswerLost: the cell may have run, and nobody can say how it went.
        """
        return await self._client._request(self._calls.run(build_cell(code, **asked)))

    def stream(self, code: str, **asked: Unpack[CellOptions]) -> AsyncGenerator[Event, None]:
        """Yield what a cell does while it does it; closing this early (`aclose`) interrupts the cell."""
        return self._client._events(self._calls.stream(build_cell(code, **asked)))

    async def branch(self, count: int = 1, *, reseed: bool = True) -> AsyncBranches:
        """Copies of the live state: sessions of their own, closed by `async with`, or one by one.

        Raises:
            CannotBranch: the state cannot be copied now; the message says why.
        """
        states = await self._client._request(self._calls.branch(count, reseed))
        return AsyncBranches(AsyncSession(self._client, state) for state in states)

    async def interrupt(self) -> bool:
        """KeyboardInterrupt in the cell that another task runs; False when none does."""
        return await self._client._request(self._calls.interrupt())

    async def upload(self, path: str, content: str | bytes | Path) -> None:
        """Make or replace a file in the work directory; a Path is read here."""
        is_local = isinstance(content, Path)
        raw = await asyncio.to_thread(read_content, content) if is_local else read_content(content)
        await self._client._request(self._calls.upload(path, raw))

    async def download(self, path: str) -> bytes:
        """What is in a file of the work directory. Raises FileNotInSession."""
        return await self._client._request(self._calls.download(path))

    async def delete(self, path: str) -> None:
        """Delete a file of the work directory. Raises FileNotInSession."""
        await self._client._request(self._calls.delete(path))

    async def files(self) -> list[WorkFile]:
        """The files of the work directory, at any depth."""
        return await self._client._request(self._calls.files())

    write_file, read_file, delete_file = upload, download, delete  # by the names they have in a Sandbox

    async def state(self) -> SessionState:
        """How it is now: busy or idle, cells run, memory, when it expires."""
        return await self._client._request(self._calls.state())

    async def close(self) -> None:
        """End it and everything it started; one that has ended already is fine."""
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
    """A session that is opened when it is awaited, or entered with `async with`."""

    def __init__(self, client: AsyncClient, asked: SessionOptions) -> None:
        self._client = client
        self._asked = asked
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
        body = await build_aside(build_session, reads=[self._asked], **self._asked)
        return AsyncSession(self._client, await self._client._request(self._client._calls.open_session(body)))


@contextlib.contextmanager
def _keeping(error: BaseException | None) -> Generator[None, None, None]:
    """What went wrong inside a `with` counts for more than that the session could not be closed after it."""
    try:
        yield
    except BelljarError:
        if error is None:
            raise
