"""/mcp on the HTTP server: streamable HTTP, behind the same checks as every other route.

The App has checked Host and Origin and knows the caller before we are asked. Newer clients (2026-07-28) send each
request by itself; older ones open an MCP session first, which only the key that opened it can use. Nobody can come
back for an answer later, so whoever hangs up ends his program, as everywhere else on this server.

The path of the kernel server has no MCP sessions, as there: each request of an older client stands alone, too.

The SDK takes a second to import: that is done in a thread, when the server has been up for a moment or at the first
request, whichever comes first. No start waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import importlib.util
import logging
from collections.abc import Callable, Mapping
from typing import Any, cast

from belljar.contract.errors import BelljarError
from belljar.contract.execution import Execution, Outcome
from belljar.contract.sessions import SessionState
from belljar.engine.engine import Engine
from belljar.frontends.access.callers import Caller
from belljar.frontends.api.context import Service
from belljar.frontends.api.large_bodies import check
from belljar.frontends.api.request import Request
from belljar.frontends.api.responses import Receive, Refusal, Send
from belljar.frontends.mcp.config import ServerConfig
from belljar.frontends.mcp.request import HttpRequest, ShortIfAsked, wants_only_its_result

_log = logging.getLogger("belljar.mcp")

_KERNELS = "/ai/sandbox/v1/mcp"

#: Where it is mounted: our own path, and the one that clients of the kernel server know.
PREFIXES = ("/mcp", _KERNELS)

_SESSIONS_MAX = 2000  # of older clients; one more is refused
_IDLE_SECONDS = 1800.0
_WARM_SECONDS = 1.0  # who waited for the server to start is answered first
_OWNERS_MAX = 1024
_VISIT = "belljar.visit"


class Endpoint:
    """An ASGI application; close it when the server stops."""

    def __init__(self, service: Service, offer: ServerConfig) -> None:
        self.settings, self.environments = service.settings, service.environments
        self._service = service
        self._offer = offer
        self._door = asyncio.Lock()
        self._managers: Mapping[str, Any] = {}  # by prefix
        self._life: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request."""
        prefix = scope["path"].rstrip("/")
        if prefix not in PREFIXES:
            raise Refusal(404, "not_found", "there is nothing at this path; MCP is at /mcp")
        if prefix == _KERNELS and scope["method"] != "POST":
            message = f"{prefix} has no MCP sessions; use POST"
            raise Refusal(405, "method_not_allowed", message, headers=((b"allow", b"POST"),))
        managers = self._managers or await self._start()
        mcp_request = HttpRequest(scope["belljar.caller"], receive, send)
        request = Request(scope, dict(scope["headers"]), receive, send, self._service.room)
        request.caller = mcp_request.caller
        try:
            if scope["method"] == "POST":
                mcp_request.body = await request.read()
                await check(mcp_request.body)
                if wants_only_its_result(request.headers, mcp_request.body):
                    mcp_request.shorten()
                    request.on_hang_up(mcp_request.leave)
            inner = {**scope, _VISIT: mcp_request, "user": self._user_of(mcp_request.caller.owner)}
            await managers[prefix].handle_request(inner, mcp_request.receive, mcp_request.send)
        finally:
            mcp_request.close()
            request.release()

    @property
    def ready(self) -> Engine:
        """Open as long as the server runs."""
        return self._service.engine

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

    async def warm(self) -> None:
        """Get ready for the first request before it comes."""
        await asyncio.sleep(_WARM_SECONDS)
        with contextlib.suppress(Refusal):  # which is for whoever asks
            await self._start()

    async def close(self) -> None:
        """End all MCP sessions, and with them the streams of their clients."""
        self._stop.set()
        if self._life is not None:
            await asyncio.wait([self._life])

    async def _start(self) -> Mapping[str, Any]:
        async with self._door:
            if not self._managers:
                if importlib.util.find_spec("mcp") is None:
                    raise Refusal(
                        404,
                        "not_offered",
                        "this server was installed without MCP; the operator adds it with pip install 'belljar[mcp]'",
                    )
                managers = await asyncio.to_thread(self._build)
                started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._life = asyncio.create_task(self._live(managers, started))
                await asyncio.wait([self._life, started], return_when=asyncio.FIRST_COMPLETED)
                if not started.done():
                    self._life.result()
                self._managers = managers
        return self._managers

    def _build(self) -> Mapping[str, Any]:
        from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
        from mcp.server.auth.provider import AccessToken
        from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

        from belljar.frontends.mcp.server import build

        logging.getLogger("mcp").setLevel(logging.WARNING)  # it writes several lines for each request
        server = build(self, self._offer, _visit_of)
        self._user_of = functools.lru_cache(_OWNERS_MAX)(
            lambda owner: AuthenticatedUser(AccessToken(token="", client_id=owner, scopes=[]))
        )
        gc.freeze()  # it all stays
        return {
            prefix: StreamableHTTPSessionManager(
                server,
                json_response=cast("bool", ShortIfAsked()),
                stateless=prefix == _KERNELS,
                max_request_body_size=self._service.settings.server.body_bytes,
                session_idle_timeout=_IDLE_SECONDS,
                max_sessions=_SESSIONS_MAX,
            )
            for prefix in PREFIXES
        }

    _user_of: Callable[[str], Any]

    async def _live(self, managers: Mapping[str, Any], started: asyncio.Future[None]) -> None:
        """The SDK's tasks need a task that enters and leaves their groups: this one."""
        async with contextlib.AsyncExitStack() as stack:
            for manager in managers.values():
                await stack.enter_async_context(manager.run())
            started.set_result(None)
            await self._stop.wait()


def _visit_of(context: Any) -> HttpRequest:
    mcp_request: HttpRequest = context.request.scope[_VISIT]
    return mcp_request
