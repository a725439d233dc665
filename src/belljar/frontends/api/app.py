"""The application: from a request to its route, and from whatever goes wrong to an answer.

Plain ASGI instead of a framework: a route costs a dictionary look-up, and the checks every request must pass are in
one function that can be read from top to bottom. Whatever brings its own application is mounted under a prefix.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from belljar.contract.errors import SandboxFault
from belljar.frontends.api import batch, pages, sessions, v1
from belljar.frontends.api.context import Service
from belljar.frontends.api.origins import check_repeated
from belljar.frontends.api.request import CONNECTION, Request
from belljar.frontends.api.responses import Message, Receive, Refusal, Send, encode_json, refusal_of, reply
from belljar.frontends.api.routing import Answer, Dialect, Methods, RouteTable

_log = logging.getLogger("belljar.api")

Application = Callable[[Mapping[str, Any], Receive, Send], Awaitable[None]]

#: Each path with its methods.
ROUTES: Mapping[str, Methods] = {
    "/v1/execute": {"POST": v1.execute},
    "/v1/batch": {"POST": batch.run_batch},
    "/v1/sessions": {"GET": sessions.list_sessions, "POST": sessions.open_session},
    "/v1/sessions/{id}": {"GET": sessions.show_session, "DELETE": sessions.close_session},
    "/v1/sessions/{id}/execute": {"POST": sessions.run_cell},
    "/v1/sessions/{id}/branch": {"POST": sessions.branch_session},
    "/v1/sessions/{id}/interrupt": {"POST": sessions.interrupt_session},
    "/v1/sessions/{id}/files": {"GET": sessions.list_files},
    "/v1/sessions/{id}/files/{path*}": {
        "GET": sessions.read_file,
        "PUT": sessions.write_file,
        "DELETE": sessions.delete_file,
    },
    "/v1/languages": {"GET": v1.list_languages},
    "/v1/environments": {"GET": v1.list_environments},
    "/v1/info": {"GET": v1.show_info},
    "/health": {"GET": pages.show_health},
    "/metrics": {"GET": pages.show_metrics},
    "/docs": {"GET": pages.show_docs},
    "/openapi.json": {"GET": pages.show_schema},
    "/": {"GET": pages.show_home},
}

#: What is the same for everybody, or must answer whoever asks.
OPEN_TO_ALL = frozenset({"/", "/health", "/docs", "/openapi.json"})


class App:
    """An ASGI application over one service: our own API and, beside it, the dialects; or one dialect alone."""

    def __init__(self, service: Service, dialects: Sequence[Dialect] = (), *, is_native: bool = True) -> None:
        self._service = service
        self._mounted: list[tuple[str, Application]] = []
        self._table = RouteTable()
        self._alone = None if is_native else dialects[0]
        if is_native:
            self._table.add(ROUTES, OPEN_TO_ALL)
        for dialect in dialects:
            self._table.add(dialect.routes, dialect.open_to_all, dialect)

    def mount(self, prefix: str, application: Application) -> None:
        """Hand everything below `prefix` to another application, once the caller is known to be allowed in."""
        self._mounted.append((prefix, application))

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        service = self._service
        headers = dict(scope["headers"])
        request = Request(scope, headers, receive, send, service.room)
        request.dialect = self._alone
        try:
            if len(headers) != len(scope["headers"]):
                check_repeated(scope["headers"])
            allowed = service.guard.check(headers)
            if allowed:
                request.send = send = _with_headers(send, allowed)
                if scope["method"] == "OPTIONS":
                    await reply(send, b"", 204)
                    return
            await self._route(scope, request)
            await request.drained()
        except ConnectionError:
            scope[CONNECTION].abandon()  # nobody is there to be answered
        except Exception as error:  # noqa: BLE001  the boundary of the API: whatever went wrong becomes an answer
            await self._refuse(request, error)
        except asyncio.CancelledError:
            _log.warning("a request was still open when the grace was over")
        finally:
            request.release()

    async def _route(self, scope: Mapping[str, Any], request: Request) -> None:
        path, method = scope["path"], scope["method"]
        found = self._table.find(path)
        if found is None:
            await self._enter_mounted(path, request)
            return
        place, request.parameters = found
        request.dialect = place.dialect
        if not place.is_open:
            self._identify(request)
        route = place.methods.get("GET" if method == "HEAD" else method)
        if route is None:
            offered = ", ".join(place.methods)
            raise Refusal(
                405,
                "method_not_allowed",
                f"{path} does not take {method}; use {offered}",
                headers=((b"allow", offered.encode()),),
            )
        await route(self._service, request)

    async def _enter_mounted(self, path: str, request: Request) -> None:
        for prefix, application in self._mounted:
            if path == prefix or path.startswith(prefix.rstrip("/") + "/"):
                self._identify(request)
                scope = {**request.scope, "belljar.caller": request.caller}
                await application(scope, request.receive, request.send)
                return
        raise Refusal(404, "not_found", "there is nothing at this path; /docs lists what there is")

    def _identify(self, request: Request) -> None:
        client = request.scope["client"]
        request.caller = self._service.callers.identify(request.headers, client[0] if client else "")

    async def _refuse(self, request: Request, error: Exception) -> None:
        refusal = refusal_of(error)
        if refusal.code == "internal_error" or isinstance(error, SandboxFault):
            _log.error("a request could not be answered: %s", error, exc_info=error)
            self._service.health.doubt()
        self._service.telemetry.refused(refusal.status, refusal.code)
        answer = Answer(encode_json(refusal.as_json())) if request.dialect is None else request.dialect.refuse(refusal)
        body, status = answer.body, answer.status or refusal.status
        asked = request.scope["method"], request.scope["path"]
        if self._alone is not None and asked == ("GET", "/") and status in (401, 403):
            status = 404  # clients of other systems look here for signs of life, and take these for none
        if refusal.status != 413:
            kind = (b"content-type", answer.content_type)
            await reply(request.send, body, status, kind, headers=refusal.headers)
            return
        head = [
            (b"content-type", answer.content_type),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
        ]
        await request.send({"type": "http.response.start", "status": status, "headers": head})
        await request.send({"type": "http.response.body", "body": body, "more_body": True})
        await request.linger()
        await request.send({"type": "http.response.body", "body": b""})


def _with_headers(send: Send, headers: tuple[tuple[bytes, bytes], ...]) -> Send:
    async def send_with(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], *headers]
        await send(message)

    return send_with
