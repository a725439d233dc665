"""Routes as tables: a path in Starlette's syntax, and a handler for each method.

A handler gets the server's context and the request, and returns its answer; None if it has sent the answer itself.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from starlette.convertors import StringConvertor, register_url_convertor
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from belljar.frontends.access.callers import Callers
from belljar.frontends.access.refusals import Refusal
from belljar.frontends.api.context import Service
from belljar.frontends.api.request import REQUEST, Request

Handler = Callable[[Service, Request], Awaitable[Response | None]]
Methods = Mapping[str, Handler]


class _RestConvertor(StringConvertor):
    """`{name:rest}` matches one character or more. Starlette's `{name:path}` also matches none, but no line breaks."""

    regex = "(?s:.+)"


class _AnyConvertor(StringConvertor):
    """`{name:any}` matches everything, even nothing."""

    regex = "(?s:.*)"


register_url_convertor("rest", _RestConvertor())
register_url_convertor("any", _AnyConvertor())


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """The wire behaviour of another system: its routes, and the form of its errors."""

    name: str  # as in --listen NAME:PORT
    title: str
    port: int  # that the system's clients use by default
    routes: Mapping[str, Methods]
    refuse: Callable[[Refusal], Response]
    open_to_all: frozenset[str] = frozenset()  # paths that need no key


class Endpoint:
    """All methods of one path: identifies the caller, and sends what the handler of the method returns."""

    def __init__(
        self,
        callers: Callers,
        handlers: Mapping[str, Callable[[Request], Awaitable[Response | None]]],
        dialect: Dialect | None = None,  # None: the native API
        *,
        is_open: bool,
    ) -> None:
        self._callers = callers
        self._handlers = handlers
        self._dialect = dialect
        self._is_open = is_open

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request: Request = scope[REQUEST]
        request.dialect = self._dialect
        if not self._is_open:
            request.identify(self._callers)
        method = scope["method"]
        handler = self._handlers.get("GET" if method == "HEAD" else method)
        if handler is None:
            offered = ", ".join(self._handlers)
            raise Refusal(
                405,
                "method_not_allowed",
                f"{scope['path']} does not support {method}; use {offered}",
                headers=((b"allow", offered.encode()),),
            )
        response = await handler(request)
        if response is not None:
            await response(scope, receive, send)


class Mounted:
    """Another ASGI application, which is reached only by identified callers."""

    def __init__(self, callers: Callers, application: ASGIApp) -> None:
        self._callers = callers
        self._application = application

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request: Request = scope[REQUEST]
        request.identify(self._callers)
        await self._application(scope, receive, send)


class ExactRoute(Route):
    """A route for the whole path: Starlette's patterns end in `$`, which also matches before a last line break."""

    def __init__(self, path: str, endpoint: Endpoint | Mounted) -> None:
        super().__init__(path, endpoint)
        self.path_regex = re.compile(self.path_regex.pattern.removesuffix("$") + r"\Z")


def routes_of(
    service: Service, table: Mapping[str, Methods], open_to_all: frozenset[str], dialect: Dialect | None = None
) -> Iterator[ExactRoute]:
    """The routes of a table, whose handlers get `service`."""
    for path, methods in table.items():
        handlers: dict[str, Any] = {method: partial(handler, service) for method, handler in methods.items()}
        yield ExactRoute(path, Endpoint(service.callers, handlers, dialect, is_open=path in open_to_all))
