"""MCP over HTTP (/mcp), behind the same checks as every other route.

The App has checked Host and Origin and identified the caller before. Newer clients (2026-07-28) send independent
requests; older ones open an MCP session first, which only the key that opened it can use. No client can fetch an answer
later, so hanging up ends its program, as everywhere else on this server. At the path of the kernel server there are no
MCP sessions, as in the original: requests of older clients are independent, too.

The SDK takes a second to import. A thread does that when the server has been up for a moment, or at the first request,
so that starting the server does not wait for it.

A call without progress gets only its result. One JSON document is enough for that, and saves a third of what MCP costs
compared with the plain API. The SDK's switch for it applies to a whole server, so the switch it is given looks at the
current request. Proxies hang up on connections that are silent for long, so after some seconds such an answer becomes a
stream after all, with pings and the same document at its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import importlib.util
import logging
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, cast

import msgspec
from starlette.types import Message, Receive, Scope, Send

from belljar.contract.sessions import SessionState
from belljar.engine.engine import Engine
from belljar.frontends.access.callers import Caller
from belljar.frontends.access.refusals import Refusal
from belljar.frontends.api.context import Service
from belljar.frontends.api.large_bodies import AT_ONCE_BYTES, check
from belljar.frontends.api.request import REQUEST, Request
from belljar.frontends.mcp.config import ServerConfig
from belljar.frontends.mcp.tool_call import log_fault

_log = logging.getLogger("belljar.mcp")

_KERNELS = "/ai/sandbox/v1/mcp"

#: Belljar's own path, and the one that clients of the kernel server know.
PREFIXES = ("/mcp", _KERNELS)

_SESSIONS_MAX = 2000  # MCP sessions of older clients
_IDLE_SECONDS = 1800.0
_WARM_SECONDS = 1.0  # requests that waited for the server to start go first
_OWNERS_MAX = 1024
SILENT_SECONDS = 15.0  # after which a proxy may hang up
_REQUEST = "belljar.mcp_request"
_IS_SHORT: ContextVar[bool] = ContextVar("belljar_mcp_is_short", default=False)
_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]


class Endpoint:
    """An ASGI application, and the `Host` of its tool calls; close it when the server stops."""

    def __init__(self, service: Service, config: ServerConfig) -> None:
        self.settings, self.environments = service.settings, service.environments
        self.open_engine: Engine = service.engine
        self._service = service
        self._config = config
        self._starting = asyncio.Lock()
        self._managers: Mapping[str, Any] = {}  # by prefix
        self._task: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        prefix = scope["path"].rstrip("/")
        if prefix not in PREFIXES:
            raise Refusal(404, "not_found", "this path does not exist; MCP is at /mcp")
        if prefix == _KERNELS and scope["method"] != "POST":
            message = f"{prefix} has no MCP sessions; use POST"
            raise Refusal(405, "method_not_allowed", message, headers=((b"allow", b"POST"),))
        managers = self._managers or await self._start()
        request: Request = scope[REQUEST]
        mcp_request = HttpRequest(request.caller, receive, send)
        try:
            if scope["method"] == "POST":
                mcp_request.body = await request.json_body()
                if len(mcp_request.body) > AT_ONCE_BYTES:
                    await check(mcp_request.body)
                if wants_only_its_result(request.header_bytes, mcp_request.body):
                    mcp_request.shorten()
                    request.on_hang_up(mcp_request.hang_up)
            inner = {**scope, _REQUEST: mcp_request, "user": self._user_of(mcp_request.caller.owner)}
            await managers[prefix].handle_request(inner, mcp_request.receive, mcp_request.send)
        finally:
            mcp_request.close()

    async def start_engine(self) -> Engine:
        """The engine, which is open as long as the server runs."""
        return self.open_engine

    def start_message(self) -> None:
        """The engine has started before."""

    def log_opened(self, caller: Caller, session: SessionState) -> None:
        """Log a session that was opened or branched, like those of the native API."""
        self._service.telemetry.opened(caller.name, session)

    def log_fault(self, error: Exception) -> None:
        """Log a fault of the server, and trigger a health check."""
        log_fault(error)
        self._service.health.check_soon()

    async def warm(self) -> None:
        """Import the SDK before the first request."""
        await asyncio.sleep(_WARM_SECONDS)
        with contextlib.suppress(Refusal):  # the next request gets it
            await self._start()

    async def close(self) -> None:
        """End all MCP sessions, and with them the streams of their clients."""
        self._stop.set()
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _start(self) -> Mapping[str, Any]:
        async with self._starting:
            if not self._managers:
                if importlib.util.find_spec("mcp") is None:
                    raise Refusal(
                        404,
                        "not_offered",
                        "this server was installed without MCP; the operator adds it with pip install 'belljar[mcp]'",
                    )
                managers = await asyncio.to_thread(self._build)
                started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._task = asyncio.create_task(self._run(managers, started))
                await asyncio.wait([self._task, started], return_when=asyncio.FIRST_COMPLETED)
                if not started.done():
                    self._task.result()
                self._managers = managers
        return self._managers

    def _build(self) -> Mapping[str, Any]:
        from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
        from mcp.server.auth.provider import AccessToken
        from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

        from belljar.frontends.mcp.server import build

        logging.getLogger("mcp").setLevel(logging.WARNING)  # it logs several lines for each request
        server = build(self, self._config, _request_of)
        self._user_of = functools.lru_cache(_OWNERS_MAX)(
            lambda owner: AuthenticatedUser(AccessToken(token="", client_id=owner, scopes=[]))
        )
        gc.freeze()  # these objects stay
        return {
            prefix: StreamableHTTPSessionManager(
                server,
                json_response=cast("bool", IsShort()),
                stateless=prefix == _KERNELS,
                max_request_body_size=self._service.settings.server.body_bytes,
                session_idle_timeout=_IDLE_SECONDS,
                max_sessions=_SESSIONS_MAX,
            )
            for prefix in PREFIXES
        }

    _user_of: Callable[[str], Any]

    async def _run(self, managers: Mapping[str, Any], started: asyncio.Future[None]) -> None:
        """Enter and leave the SDK's task groups, which one task must do."""
        async with contextlib.AsyncExitStack() as stack:
            for manager in managers.values():
                await stack.enter_async_context(manager.run())
            started.set_result(None)
            await self._stop.wait()


def _request_of(context: Any) -> HttpRequest:
    mcp_request: HttpRequest = context.request.scope[_REQUEST]
    return mcp_request


class IsShort:
    """The SDK's switch between one JSON document and a stream of events; its truth is that of the current request."""

    def __bool__(self) -> bool:
        return _IS_SHORT.get()


class HttpRequest:
    """One request to MCP over HTTP; close it when it ends."""

    def __init__(self, caller: Caller, receive: Receive, send: Send) -> None:
        self.caller = caller
        self.body = b""
        self._receive = receive
        self._send = send
        self._is_read = False
        self._is_answered = False
        self._has_left = False
        self._notify: Callable[[], object] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._stream: _Stream | None = None

    def shorten(self, silent_seconds: float = SILENT_SECONDS) -> None:
        """Answer with one document instead of a stream, unless that takes too long."""
        _IS_SHORT.set(True)
        self._timer = asyncio.get_running_loop().call_later(silent_seconds, self._begin_stream, silent_seconds)

    def on_hang_up(self, notify: Callable[[], object]) -> None:
        """Call `notify` if the client hangs up before its answer is complete."""
        self._notify = notify
        if self._has_left:
            notify()

    def hang_up(self) -> None:
        """The connection has ended, or the answer is complete."""
        if not self._is_answered:
            self._has_left = True
            if self._notify is not None:
                self._notify()

    async def receive(self) -> Message:
        """The body in one piece, then only the end of the connection."""
        if not self._is_read:
            self._is_read = True
            return {"type": "http.request", "body": self.body, "more_body": False}
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self.hang_up()
        return message

    async def send(self, message: Message) -> None:
        """Pass a message on to the client, as part of the stream once that has begun."""
        is_last = message["type"] == "http.response.body" and not message.get("more_body")
        self._is_answered = self._is_answered or is_last
        if self._timer is not None:
            self._timer.cancel()
        if self._stream is None:
            await self._send(message)
        elif is_last:
            await self._stream.end(message["body"])

    def close(self) -> None:
        """Stop the timer and the pings."""
        if self._timer is not None:
            self._timer.cancel()
        if self._stream is not None:
            self._stream.stop()

    def _begin_stream(self, silent_seconds: float) -> None:
        self._stream = _Stream(self._send, silent_seconds)


class _Stream:
    """An answer whose stream has begun before the result exists: pings until then."""

    def __init__(self, send: Send, silent_seconds: float) -> None:
        self._send = send
        self._silent_seconds = silent_seconds
        self._is_over = asyncio.Event()
        self._pings = asyncio.create_task(self._ping())

    async def end(self, document: bytes) -> None:
        """Send the result. The status was sent as 200 already, whatever the SDK would have chosen."""
        self.stop()
        await self._pings
        await self._send({"type": "http.response.body", "body": b"event: message\r\ndata: %b\r\n\r\n" % document})

    def stop(self) -> None:
        self._is_over.set()

    async def _ping(self) -> None:
        await self._send({"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS})
        while not self._is_over.is_set():
            await self._send({"type": "http.response.body", "body": b": ping\r\n\r\n", "more_body": True})
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._silent_seconds):
                    await self._is_over.wait()


class _Meta(msgspec.Struct):
    progress_token: Any = msgspec.field(name="progressToken", default=None)


class _Params(msgspec.Struct):
    meta: _Meta | None = msgspec.field(name="_meta", default=None)


class _Message(msgspec.Struct):
    method: str
    params: _Params


_decode = msgspec.json.Decoder(_Message).decode


def wants_only_its_result(headers: Mapping[bytes, bytes], body: bytes) -> bool:
    """Whether this is a tool call without progress by a client that accepts either form."""
    accepted = headers.get(b"accept", b"").lower()
    if b"application/json" not in accepted or b"text/event-stream" not in accepted:
        return False
    try:
        message = _decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    meta = message.params.meta
    return message.method == "tools/call" and (meta is None or meta.progress_token is None)
