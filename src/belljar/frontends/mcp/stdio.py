"""`belljar mcp`: a server for one client, on standard input and output, with an engine of its own.

The client waits for its first answer, so nothing is done before that but importing the SDK; the sandbox is warmed
while the client reads what it can call.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
from typing import Any

from belljar.contract.errors import BelljarError
from belljar.contract.execution import Execution, Outcome
from belljar.contract.sessions import SessionState
from belljar.engine.engine import Engine
from belljar.environments import Environments
from belljar.frontends.access.callers import Caller
from belljar.frontends.access.keys import Key
from belljar.frontends.mcp.config import ServerConfig
from belljar.frontends.mcp.stdio_transport import standard_streams
from belljar.settings import Settings

_log = logging.getLogger("belljar.mcp")
CALLER = "mcp"
_SHOWN_CHARACTERS = 120


async def serve(settings: Settings, offer: ServerConfig) -> None:
    """Serve until the client closes our input, or a signal comes; then leave nothing behind."""
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, task.cancel)
    host = OwnEngine(settings)
    try:
        await _talk(settings, offer, host)
    except asyncio.CancelledError:
        _log.info("stopped by a signal")
    finally:
        await host.close()


async def _talk(settings: Settings, offer: ServerConfig, host: OwnEngine) -> None:
    async with standard_streams(settings.server.body_bytes) as (lines, outlet):
        gc.disable()  # what an import makes stays; looking through it for garbage costs a sixth of the start
        from mcp.server.stdio import stdio_server

        from belljar.frontends.mcp.server import build

        mcp_request = _StdioRequest(Caller(Key(name=CALLER, network=True, tools=True), settings))
        server = build(host, offer, lambda context: mcp_request)
        gc.freeze()
        gc.enable()

        async def warm(ctx: Any, call_next: Any) -> Any:
            try:
                return await call_next(ctx)
            finally:
                host.warm()

        server.middleware.append(warm)
        streams: Any = stdio_server(stdin=lines, stdout=outlet)  # type: ignore[arg-type]
        async with streams as (incoming, outgoing):
            await server.run(incoming, outgoing, server.create_initialization_options())


class _StdioRequest:
    """The one client. When it leaves, the SDK cancels its calls itself."""

    def __init__(self, caller: Caller) -> None:
        self.caller = caller

    def on_leaving(self, tell: Any) -> None:
        """Nothing to add."""


class OwnEngine:
    """A Host that opens its engine in the background, and again at the next call if that failed."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.environments = settings, Environments(settings.state_dir, settings.environments)
        self._opening: asyncio.Task[Engine] | None = None
        self._engine: Engine | None = None
        self._news: str | None = None

    def warm(self) -> None:
        """Begin to open, unless that was begun."""
        if self._opening is None or (self._opening.done() and self._has_failed()):
            self._opening = asyncio.create_task(self._open())
            self._opening.add_done_callback(_retrieve)

    @property
    def ready(self) -> Engine | None:
        """None while it opens, and after that failed."""
        if self._opening is None or not self._opening.done() or self._has_failed():
            return None
        return self._opening.result()

    async def engine(self) -> Engine:
        """The open engine. Raises SandboxFault."""
        self.warm()
        assert self._opening is not None
        return await asyncio.shield(self._opening)  # one cancelled call must not stop it for all

    def news(self) -> str | None:
        """What the engine is busy with while it opens."""
        return self._news

    def executed(self, execution: Execution, outcome: Outcome) -> None:
        """Nobody counts here."""

    def opened(self, caller: Caller, session: SessionState) -> None:
        """Nor here."""

    def ran_cell(self, caller: Caller, session_id: str, cell: Execution, outcome: Outcome) -> None:
        """Nor here."""

    def broke(self, error: Exception) -> None:
        """Into the client's log."""
        _log.error("a tool could not be run: %s", error, exc_info=None if isinstance(error, BelljarError) else error)

    async def close(self) -> None:
        """End everything."""
        if self._opening is not None and not self._opening.done():
            self._opening.cancel()
            with contextlib.suppress(asyncio.CancelledError, BelljarError):
                await self._opening
        if self._engine is not None:
            await self._engine.close(0.0)

    async def _open(self) -> Engine:
        build_engine = await asyncio.to_thread(_import_assembly)
        engine: Engine = build_engine(self.settings, self._report)
        self._engine = engine
        await engine.open()
        self._news = None
        return engine

    def _has_failed(self) -> bool:
        assert self._opening is not None
        return self._opening.cancelled() or self._opening.exception() is not None

    def _report(self, news: str) -> None:
        self._news = f"preparing the sandbox: {news.strip()[:_SHOWN_CHARACTERS]}"
        _log.info("%s", news)


def _import_assembly() -> Any:
    from belljar.assembly import build_engine

    return build_engine


def _retrieve(task: asyncio.Task[Engine]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("the sandbox could not be started: %s", error)
