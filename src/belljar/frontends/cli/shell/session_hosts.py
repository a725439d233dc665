"""Where the sessions of `belljar shell` run: in an engine of this process, or on a server.

Both run on an event loop in a separate thread, because the main thread waits for input most of the time.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import AsyncGenerator, Coroutine, Sequence
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from belljar.assembly import build_engine
from belljar.client.async_client import AsyncClient
from belljar.client.request import SessionOptions
from belljar.client.retries import Retries
from belljar.client.sessions import AsyncSession
from belljar.contract.errors import InvalidSettings
from belljar.contract.execution import Event
from belljar.contract.request import CellRequest
from belljar.contract.sessions import SessionOrder, SessionState, WorkFile
from belljar.engine.admission.request import admit_cell
from belljar.engine.engine import Engine
from belljar.settings import Settings

_CONNECT_SECONDS = 5.0  # short, as the user can try again

_T = TypeVar("_T")


class LiveSession(Protocol):
    """A session, local or remote. Its methods must be called on the event loop's thread."""

    id: str

    def stream(self, code: str, timeout: float | None) -> AsyncGenerator[Event, None]:
        """Run a cell and yield its events."""

    async def branch(self, reseed: bool) -> LiveSession:
        """Copy the live state into a new session; with `reseed`, its random numbers differ."""

    async def interrupt(self) -> bool:
        """Raise KeyboardInterrupt in the running cell."""

    async def upload(self, path: str, content: bytes) -> None:
        """Create or replace a file of the work directory."""

    async def download(self, path: str) -> bytes:
        """Read a file of the work directory."""

    async def files(self) -> Sequence[WorkFile]:
        """List the work directory."""

    async def state(self) -> SessionState:
        """Fetch the current state. Raises NotFound after the session has ended."""

    async def close(self) -> None:
        """End the session."""


class SessionHost(Protocol):
    """Opens sessions, in this process or on a server."""

    async def open(self) -> LiveSession:
        """Open a new session."""

    async def attach(self, session_id: str) -> LiveSession:
        """Join a session that is already open."""

    async def close(self) -> None:
        """Release everything that the host holds in this process."""


class LocalHost:
    """Runs sessions in an engine of this process."""

    def __init__(self, settings: Settings, order: SessionOrder) -> None:
        self._settings = settings
        self._order = order
        self._engine: Engine | None = None

    async def open(self) -> LiveSession:
        """Open a session; the first one also opens the engine."""
        if self._engine is None:
            engine = build_engine(self._settings)
            await engine.open()
            self._engine = engine
        state = await self._engine.sessions.open(self._order)
        return _LocalSession(self._engine, self._order.caller, state)

    async def attach(self, session_id: str) -> LiveSession:
        """Not supported: the engine has no sessions of other processes."""
        raise NotImplementedError

    async def close(self) -> None:
        """Close the engine and all its sessions."""
        if self._engine is not None:
            await self._engine.close(0.0)


class _LocalSession:
    def __init__(self, engine: Engine, caller: str, state: SessionState) -> None:
        self.id = state.id
        self._engine = engine
        self._caller = caller
        self._opened = state

    def stream(self, code: str, timeout: float | None) -> AsyncGenerator[Event, None]:
        cell = admit_cell(self._engine.settings, self._opened.limits, CellRequest(code, timeout=timeout))
        return self._engine.sessions.stream(self._caller, self.id, cell)

    async def branch(self, reseed: bool) -> LiveSession:
        (state,) = await self._engine.sessions.branch(self._caller, self.id, 1, reseed=reseed)
        return _LocalSession(self._engine, self._caller, state)

    async def interrupt(self) -> bool:
        return self._engine.sessions.interrupt(self._caller, self.id)

    async def upload(self, path: str, content: bytes) -> None:
        await self._engine.sessions.write_file(self._caller, self.id, path, content)

    async def download(self, path: str) -> bytes:
        return await self._engine.sessions.read_file(self._caller, self.id, path)

    async def files(self) -> Sequence[WorkFile]:
        return await self._engine.sessions.list_files(self._caller, self.id)

    async def state(self) -> SessionState:
        return self._engine.sessions.get(self._caller, self.id)

    async def close(self) -> None:
        await self._engine.sessions.close(self._caller, self.id)


class RemoteHost:
    """Opens sessions on a server."""

    def __init__(self, url: str, api_key: str | None, session_options: SessionOptions) -> None:
        """Raises CallerError if the URL or the key is malformed, InvalidSettings if httpx is not installed."""
        options = {"api_key": api_key} if api_key else {}
        try:
            self._client = AsyncClient.from_env(url=url, retries=Retries(total_seconds=_CONNECT_SECONDS), **options)
        except ImportError as error:  # its message names the package to install
            raise InvalidSettings(str(error)) from error
        self._session_options = session_options

    async def open(self) -> LiveSession:
        return _RemoteSession(await self._client.session(**self._session_options))

    async def attach(self, session_id: str) -> LiveSession:
        return _RemoteSession(await self._client.attach(session_id))

    async def close(self) -> None:
        """Disconnect; sessions stay open."""
        await self._client.close()


class _RemoteSession:
    def __init__(self, session: AsyncSession) -> None:
        self.id = session.id
        self._session = session
        self.interrupt, self.download = session.interrupt, session.download
        self.upload, self.files, self.state, self.close = session.upload, session.files, session.state, session.close

    def stream(self, code: str, timeout: float | None) -> AsyncGenerator[Event, None]:
        return self._session.stream(code, timeout=timeout)

    async def branch(self, reseed: bool) -> LiveSession:
        (branch,) = await self._session.branch(reseed=reseed)
        return _RemoteSession(branch)


class Loop:
    """An event loop in a separate thread; leaving the `with` block stops it."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="belljar-shell", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def start(self, work: Coroutine[Any, Any, _T]) -> concurrent.futures.Future[_T]:
        """Start a coroutine on the event loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def do(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine on the event loop and return its result. An exception in this thread cancels it first."""
        future = self.start(work)
        try:
            return future.result()
        except BaseException:
            if not future.done():
                future.cancel()
                concurrent.futures.wait([future])
            raise

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()
