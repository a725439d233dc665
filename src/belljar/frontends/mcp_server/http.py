"""/mcp on the HTTP server: streamable HTTP, behind the same checks as every other route.

The App has checked Host and Origin and knows the caller before we are asked. Newer clients (2026-07-28) send each
request by itself; older ones open an MCP session first, which only the key that opened it can use. Nobody can come
back for an answer later, so whoever hangs up ends his program, as everywhere else on this server.

The SDK is imported at the first request, in a thread: a server that nobody asks for MCP should not carry it.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
from collections.abc import Callable, Mapping
from typing import Any

from belljar.contract.errors import BelljarError
from belljar.contract.execution import Execution, Outcome
from belljar.contract.sessions import SessionState
from belljar.engine.execute import Engine
from belljar.frontends.api.callers import Caller
from belljar.frontends.api.replies import Message, Receive, Refusal, Send
from belljar.frontends.api.request import Request
from belljar.frontends.api.service import Service
from belljar.frontends.mcp_server.offer import Offer

_log = logging.getLogger("belljar.mcp")

#: Where it is mounted: our own path, and the one that clients of the kernel server know.
PREFIXES = ("/mcp", "/ai/sandbox/v1/mcp")

_SESSIONS_MAX = 2000  # of older clients; one more is refused
_IDLE_SECONDS = 1800.0
_VISIT = "belljar.visit"


class Endpoint:
    """An ASGI application; close it when the server stops."""

    def __init__(self, service: Service, offer: Offer) -> None:
        self.settings, self.environments = service.settings, service.environments
        self._service = service
        self._offer = offer
        self._door = asyncio.Lock()
        self._manager: Any = None
        self._life: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["path"].rstrip("/") not in PREFIXES:
            raise Refusal(404, "not_found", "there is nothing at this path; MCP is at /mcp")
        manager = self._manager or await self._start()
        visit = HttpVisit(scope["belljar.caller"], receive, send)
        request = Request(scope, dict(scope["headers"]), receive, send, self._service.room)
        try:
            if scope["method"] == "POST":
                visit.body = await request.read()
            inner = {**scope, _VISIT: visit, "user": self._user_of(visit.caller)}
            await manager.handle_request(inner, visit.receive, visit.send)
        finally:
            request.release()

    async def engine(self) -> Engine:
        """Open as long as the server runs."""
        return self._service.engine

    def news(self) -> str | None:
        """It has started long ago."""
        return None

    def executed(self, execution: Execution, outcome: Outcome) -> None:
        """As every execution of the server."""
        self._service.executed(execution, outcome)

    def opened(self, caller: Caller, session: SessionState) -> None:
        """As every session of the server."""
        self._service.telemetry.opened(caller.name, session)

    def ran_cell(self, caller: Caller, session_id: str, cell: Execution, outcome: Outcome) -> None:
        """As every cell of the server."""
        self._service.health.ran()
        self._service.telemetry.ran_cell(caller.name, session_id, cell, outcome)

    def broke(self, error: Exception) -> None:
        """Into the log, and the next health check looks closer."""
        _log.error("a tool could not be run: %s", error, exc_info=None if isinstance(error, BelljarError) else error)
        self._service.health.doubt()

    async def close(self) -> None:
        """End all MCP sessions, and with them the streams of their clients."""
        self._stop.set()
        if self._life is not None:
            await asyncio.wait([self._life])

    async def _start(self) -> Any:
        async with self._door:
            if self._manager is None:
                if importlib.util.find_spec("mcp") is None:
                    raise Refusal(
                        404,
                        "not_offered",
                        "this server was installed without MCP; the operator adds it with pip install 'belljar[mcp]'",
                    )
                manager = await asyncio.to_thread(self._build)
                started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._life = asyncio.create_task(self._live(manager, started))
                await asyncio.wait([self._life, started], return_when=asyncio.FIRST_COMPLETED)
                if not started.done():
                    self._life.result()
                self._manager = manager
        return self._manager

    def _build(self) -> Any:
        from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
        from mcp.server.auth.provider import AccessToken
        from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

        from belljar.frontends.mcp_server.server import build

        logging.getLogger("mcp").setLevel(logging.WARNING)  # it writes several lines for each request
        self._user_of = lambda caller: AuthenticatedUser(AccessToken(token="", client_id=caller.owner, scopes=[]))
        server = build(self, self._offer, _visit_of)
        return StreamableHTTPSessionManager(
            server,
            max_request_body_size=self._service.settings.server.body_bytes,
            session_idle_timeout=_IDLE_SECONDS,
            max_sessions=_SESSIONS_MAX,
        )

    _user_of: Callable[[Caller], Any]

    async def _live(self, manager: Any, started: asyncio.Future[None]) -> None:
        """The SDK's tasks need a task that enters and leaves their group: this one."""
        async with manager.run():
            started.set_result(None)
            await self._stop.wait()


def _visit_of(context: Any) -> HttpVisit:
    visit: HttpVisit = context.request.scope[_VISIT]
    return visit


class HttpVisit:
    """One request: its body, read already, and whether the client is still there for the answer."""

    def __init__(self, caller: Caller, receive: Receive, send: Send) -> None:
        self.caller = caller
        self.body = b""
        self._receive = receive
        self._send = send
        self._is_read = False
        self._is_answered = False
        self._has_left = False
        self._tell: Callable[[], object] | None = None

    def on_leaving(self, tell: Callable[[], object]) -> None:
        """Call `tell` when the client hangs up before it has its answer."""
        self._tell = tell
        if self._has_left:
            tell()

    async def receive(self) -> Message:
        """The body at once, then only the end of the connection."""
        if not self._is_read:
            self._is_read = True
            return {"type": "http.request", "body": self.body, "more_body": False}
        message = await self._receive()
        if message["type"] == "http.disconnect" and not self._is_answered:
            self._has_left = True
            if self._tell is not None:
                self._tell()
        return message

    async def send(self, message: Message) -> None:
        """Pass it on; remember when it was the last."""
        if message["type"] == "http.response.body" and not message.get("more_body"):
            self._is_answered = True
        await self._send(message)
