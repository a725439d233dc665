"""The wire behaviour of the kernel server "Python Sandbox MCP Server": cells in named sessions, streamed line by line.

There are two prefixes because its documentation and its code disagree.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from msgspec import Struct
from starlette.responses import Response

from belljar import __version__
from belljar.contract.errors import CallerError
from belljar.contract.execution import Event, Execution
from belljar.contract.request import CellRequest
from belljar.engine.admission.request import admit_cell
from belljar.engine.outcomes import new_id
from belljar.frontends.access.refusals import Headers, Refusal, refusal_of
from belljar.frontends.api.context import Service
from belljar.frontends.api.dialects.fastapi import read_whole
from belljar.frontends.api.dialects.kernels.events import Line, lines_of
from belljar.frontends.api.dialects.kernels.names import id_of, name_of
from belljar.frontends.api.dialects.kernels.sessions import (
    create_session,
    find_or_open,
    interrupt_session,
    list_sessions,
    show_session,
    terminate_session,
    wrap,
)
from belljar.frontends.api.request import Request
from belljar.frontends.api.responses import Answer, encode_json
from belljar.frontends.api.routing import Dialect, Methods

PREFIXES = ("/api/v1", "/ai/sandbox/v1/api")
_NDJSON = b"application/x-ndjson; charset=utf-8"
_started_at = time.monotonic()


class ExecuteBody(Struct):
    """The body of /execute and /execute_sync; `variables` is accepted and ignored, as in the original."""

    code: str
    session_id: str | None = None
    timeout: float | None = None
    variables: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class _Cell:
    """A cell that is about to run; it starts when its events are read."""

    execution: Execution
    session: str
    events: AsyncGenerator[Event, None]

    @property
    def headers(self) -> Headers:
        """The session's name, which the original does not send to clients that chose none."""
        return ((b"x-session-id", name_of(self.session).encode("unicode_escape")),)


# ---- cells


async def execute(service: Service, request: Request) -> None:
    """Stream a line for each event."""
    async with _prepare(service, request) as cell:
        stream = _EventStream(request, cell.headers)
        await request.while_connected(_stream(service, cell, stream))
        await stream.end()


async def execute_sync(service: Service, request: Request) -> Response:
    """Answer with all lines at once."""
    data: dict[str, list[Any]] = {"texts": [], "images": [], "errors": []}

    async def collect(line: Line) -> None:
        for key, kind in (("text", "texts"), ("image", "images"), ("error", "errors")):
            if key in line:
                data[kind].append(line if key == "error" else line[key])

    async with _prepare(service, request) as cell:
        await request.while_connected(_run(cell, collect))
        return Answer(wrap(data), headers=cell.headers)


@contextlib.asynccontextmanager
async def _prepare(service: Service, request: Request) -> AsyncIterator[_Cell]:
    """The cell in the body, and its session, which is opened if no session has that name."""
    caller = request.caller
    caller.count_request()
    body = await read_whole(ExecuteBody, await request.json_body())
    state = await find_or_open(service, request, id_of(body.session_id))
    timeout = None
    if body.timeout is not None and body.timeout > 0:
        timeout = min(body.timeout, caller.settings.ceiling_limits.wall_seconds)
    code = body.code if body.code.strip() else "pass"
    execution = admit_cell(caller.settings, state.limits, CellRequest(code, timeout=timeout), caller.name)
    with caller.running_up_to(1):
        events = service.engine.sessions.stream(caller.owner, state.id, execution, execution_id=new_id())
        async with contextlib.aclosing(events):
            yield _Cell(execution, state.id, events)


async def _run(cell: _Cell, send: Callable[[Line], Awaitable[None]]) -> None:
    async with contextlib.aclosing(lines_of(cell.events, cell.execution)) as lines:
        async for line in lines:
            await send(line)


async def _stream(service: Service, cell: _Cell, stream: _EventStream) -> None:
    try:
        await _run(cell, stream.send)
    except Exception as error:  # once the status is sent, an error can only be reported in the stream
        if not stream.has_begun or isinstance(error, ConnectionError):
            raise
        if not isinstance(error, CallerError):
            service.health.check_soon()
        await stream.send({"error": refusal_of(error).message, "traceback": []})


class _EventStream:
    """The body of a streaming answer; empty for a cell without output."""

    def __init__(self, request: Request, headers: Headers) -> None:
        self._request = request
        self._headers = headers
        self.has_begun = False

    async def send(self, line: Line) -> None:
        """Send one line; waits while the client reads more slowly than the cell writes."""
        await self._begin()
        await self._request.send_piece(encode_json(line) + b"\n")

    async def end(self) -> None:
        await self._begin()
        await self._request.end()

    async def _begin(self) -> None:
        if self.has_begun:
            return
        self.has_begun = True
        await self._request.begin(
            (b"content-type", _NDJSON),
            (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"),  # else a proxy may buffer the whole stream
            *self._headers,
        )


# ---- health and errors


async def show_health(service: Service, request: Request) -> Response:
    trouble = service.health.trouble
    body = {
        "status": "unhealthy" if trouble else "healthy",
        "version": __version__,
        "active_sessions": service.engine.sessions.facts()["open"],
        "uptime": round(time.monotonic() - _started_at, 3),
    }
    return Answer(body, 503 if trouble else 200)


async def show_info(service: Service, request: Request) -> Response:
    """GET / on the dialect's own port."""
    body = {
        "name": "Python Sandbox MCP Server",
        "version": __version__,
        "health": "/health",
        "api_endpoint": PREFIXES[1],
        "served_by": "belljar",
    }
    return Answer(body)


def refuse(refusal: Refusal) -> Response:
    """`{"detail": …}`, with the messages that its clients and tests look for."""
    if refusal.code == "unauthorized":
        detail: Any = "Invalid API key" if refusal.details.get("key") == "unknown" else "API key required"
    elif refusal.code in ("session_not_found", "session_ended"):
        detail = "Session not found"
    elif refusal.status in (400, 422):
        unnamed = [{"loc": ["body"], "msg": refusal.message, "type": refusal.code}]
        detail = refusal.details.get("detail", unnamed)
    else:
        detail = refusal.message
    return Answer({"detail": detail}, 422 if refusal.status == 400 else refusal.status)


_BELOW: dict[str, Methods] = {
    "/execute": {"POST": execute},
    "/execute_sync": {"POST": execute_sync},
    "/sessions": {"GET": list_sessions, "POST": create_session},
    "/sessions/{id}": {"GET": show_session, "DELETE": terminate_session},
    "/sessions/{id}/interrupt": {"POST": interrupt_session},
    "/health": {"GET": show_health},
}

DIALECT = Dialect(
    name="kernels",
    title="Python Sandbox MCP Server",
    port=16010,
    routes={
        **{prefix + path: methods for prefix in PREFIXES for path, methods in _BELOW.items()},
        "/health": {"GET": show_health},
        "/": {"GET": show_info},
    },
    refuse=refuse,
    open_to_all=frozenset({"/", "/health", *(prefix + "/health" for prefix in PREFIXES)}),
)
