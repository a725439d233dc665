"""The ASGI application: checks every request, has Starlette find its route, and turns every error into an answer.

The checks that every request must pass are in one method, `App.__call__`. Of Starlette, the router, the requests and
the responses are used, but not its application class and middlewares. Other ASGI applications (MCP) are mounted.

Why the Host header is checked: a web page can let its own name resolve to 127.0.0.1, and the browser then treats this
server as that page's own. The name stays in the Host header. An IP address cannot be made to resolve elsewhere, so
addresses are accepted.

Why the Origin header is checked: browsers send it with requests of pages of another origin, and no other client sends
it by itself.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
from collections.abc import Callable, Mapping, Sequence

from starlette.routing import Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from belljar.frontends.access.callers import Callers, MemoryBudget
from belljar.frontends.access.refusals import Headers, Refusal
from belljar.frontends.api import batch, pages, sessions, v1
from belljar.frontends.api.context import Service
from belljar.frontends.api.request import CONNECTION, Request
from belljar.frontends.api.responses import Answer, NoContent
from belljar.frontends.api.routing import Dialect, ExactRoute, Methods, Mounted, routes_of
from belljar.settings import ServerSettings

_log = logging.getLogger("belljar.api")
_HOSTS_MAX = 1024
_ONCE = frozenset({b"host", b"origin", b"authorization", b"x-api-key", b"content-type", b"content-length"})

ROUTES: Mapping[str, Methods] = {
    "/v1/execute": {"POST": v1.execute},
    "/v1/batch": {"POST": batch.run_batch},
    "/v1/sessions": {"GET": sessions.list_sessions, "POST": sessions.open_session},
    "/v1/sessions/{id}": {"GET": sessions.show_session, "DELETE": sessions.close_session},
    "/v1/sessions/{id}/execute": {"POST": sessions.run_cell},
    "/v1/sessions/{id}/branch": {"POST": sessions.branch_session},
    "/v1/sessions/{id}/interrupt": {"POST": sessions.interrupt_session},
    "/v1/sessions/{id}/files": {"GET": sessions.list_files},
    "/v1/sessions/{id}/files/{path:rest}": {
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

#: Paths that need no key: they are the same for every caller, or must always answer.
OPEN_TO_ALL = frozenset({"/", "/health", "/docs", "/openapi.json"})


class Guard:
    """Checks the Host and Origin headers before anything else is read."""

    def __init__(self, server: ServerSettings) -> None:
        self._any_host = "*" in server.allowed_hosts
        self._hosts = {"localhost", socket.gethostname().lower(), server.host.lower()}
        self._hosts.update(name.lower() for name in server.allowed_hosts)
        self._origins = {origin.rstrip("/").lower().encode() for origin in server.allowed_origins}
        self._good_hosts: set[bytes] = set()  # accepted before: the check is expensive

    def check(self, headers: Mapping[bytes, bytes]) -> Headers:
        """Return the headers that let the page that sent the request read the answer.

        Raises:
            Refusal: 403; the message says which setting allows the request.
        """
        host = headers.get(b"host")
        if host is not None and host not in self._good_hosts:
            self._check_host(host)
        origin = headers.get(b"origin")
        return () if origin is None else self._check_origin(origin, host)

    def _check_host(self, host: bytes) -> None:
        name = _name_in(host)
        if not (self._any_host or name in self._hosts or _is_address(name)):
            raise Refusal(
                403,
                "host_not_allowed",
                "the name in the Host header is not a name of this server; the operator adds names with "
                "server.allowed_hosts",
            )
        if len(self._good_hosts) < _HOSTS_MAX:
            self._good_hosts.add(host)

    def _check_origin(self, origin: bytes, host: bytes | None) -> Headers:
        lowered = origin.lower()
        if host is not None and lowered in (b"http://" + host.lower(), b"https://" + host.lower()):
            return ()
        if lowered not in self._origins:
            raise Refusal(
                403,
                "origin_not_allowed",
                "web pages of that origin may not call this server; the operator adds origins with "
                "server.allowed_origins",
            )
        return (
            (b"access-control-allow-origin", origin),
            (b"access-control-allow-methods", b"GET, POST, PUT, DELETE"),
            (
                b"access-control-allow-headers",
                b"authorization, content-type, x-api-key, "
                b"mcp-protocol-version, mcp-session-id, mcp-method, mcp-name, last-event-id",
            ),
            (b"access-control-expose-headers", b"mcp-session-id"),
            (b"access-control-max-age", b"600"),
            (b"vary", b"origin"),
        )


def check_repeated(headers: Sequence[tuple[bytes, bytes]]) -> None:
    """Raise Refusal if a header that decides access is sent twice: a proxy in front may have read the other one."""
    names = [name for name, _ in headers if name in _ONCE]
    for name in names:
        if names.count(name) > 1:
            raise Refusal(400, "bad_request", f"the request has several {name.decode().title()} headers; send one")


def _name_in(host: bytes) -> str:
    """The Host header without its port."""
    text = host.decode("latin-1").strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.rpartition(":")[0] if text.count(":") == 1 else text


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class App:
    """One listener's application: the boundary at which every request is checked, and every error becomes an answer."""

    def __init__(
        self,
        server: ServerSettings,
        callers: Callers,
        memory: MemoryBudget,
        refuse: Callable[[Exception], Refusal],
        routes: Sequence[ExactRoute],
        alone: Dialect | None = None,
    ) -> None:
        """`refuse` counts and logs errors; `alone` is the dialect if only one is served."""
        self._guard = Guard(server)
        self._callers = callers
        self._memory = memory
        self._refusal_of = refuse
        self._alone = alone
        # The router tries one pattern after the other, so paths without parameters are looked up first.
        self._exact: dict[str, ASGIApp] = {each.path: each.app for each in reversed(routes) if "{" not in each.path}
        self._router = Router(routes, redirect_slashes=False, default=self._find_nothing)

    def mount(self, prefix: str, application: ASGIApp) -> None:
        """Pass requests for `prefix` and everything below to another application, once their caller is identified."""
        mounted = Mounted(self._callers, application)
        self._router.routes += (ExactRoute(prefix, mounted), ExactRoute(prefix + "/{rest:any}", mounted))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope, receive, send, self._memory, self._callers.unidentified)
        request.dialect = self._alone
        try:
            if len(request.header_bytes) != len(scope["headers"]):
                check_repeated(scope["headers"])
            allowed = self._guard.check(request.header_bytes)
            if allowed:
                request.send = send = _with_headers(send, allowed)
                if scope["method"] == "OPTIONS":
                    await NoContent()(scope, receive, send)
                    return
            await self._exact.get(scope["path"], self._router)(scope, receive, send)
            await request.drained()
        except ConnectionError:
            scope[CONNECTION].abandon()  # the client has left
        except Exception as error:  # noqa: BLE001  the boundary of the API: every error becomes an answer
            await self._refuse(request, error)
        except asyncio.CancelledError:
            _log.warning("a request was still open at the end of the grace period")
        finally:
            request.release()

    async def _find_nothing(self, scope: Scope, receive: Receive, send: Send) -> None:
        hint = "; /docs lists those that do" if self._alone is None else ""
        raise Refusal(404, "not_found", f"this path does not exist{hint}")

    async def _refuse(self, request: Request, error: Exception) -> None:
        refusal = self._refusal_of(error)
        dialect = request.dialect
        answer = Answer(refusal.as_json(), refusal.status) if dialect is None else dialect.refuse(refusal)
        target = request.method, request.scope["path"]
        if self._alone is not None and target == ("GET", "/") and answer.status_code in (401, 403):
            answer.status_code = 404  # clients of other systems ask here if a server runs, and take 401 for "no"
        answer.raw_headers += refusal.headers
        if refusal.status != 413:
            await answer(request.scope, request.receive, request.send)
            return
        answer.raw_headers.append((b"connection", b"close"))
        head = {"type": "http.response.start", "status": answer.status_code, "headers": answer.raw_headers}
        await request.send(head)
        await request.send_piece(bytes(answer.body))
        await request.linger()
        await request.end()


def build_app(service: Service, dialects: Sequence[Dialect] = (), *, is_native: bool = True) -> App:
    """The native API together with the dialects, or one dialect alone. The first route for a path counts."""
    routes: list[ExactRoute] = []
    if is_native:
        routes += routes_of(service, ROUTES, OPEN_TO_ALL)
    for dialect in dialects:
        routes += routes_of(service, dialect.routes, dialect.open_to_all, dialect)
    alone = None if is_native else dialects[0]
    return App(service.settings.server, service.callers, service.memory, service.refuse, routes, alone)


def _with_headers(send: Send, headers: Headers) -> Send:
    async def send_with(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], *headers]
        await send(message)

    return send_with
