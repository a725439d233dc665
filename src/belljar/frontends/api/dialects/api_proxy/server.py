"""`belljar proxy`: X-Master's API proxy alone, without a sandbox."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import socket
from functools import partial

import uvicorn
from starlette.responses import Response

from belljar import __version__
from belljar.aio import cancel_all
from belljar.frontends.access.callers import Callers, MemoryBudget
from belljar.frontends.access.keys import KeyFile, KeyRing, keys_path
from belljar.frontends.access.refusals import Refusal, refusal_of
from belljar.frontends.api.app import App
from belljar.frontends.api.dialects import fastapi
from belljar.frontends.api.dialects.api_proxy.routes import DIALECT, PATHS, Proxy, answer
from belljar.frontends.api.request import Request
from belljar.frontends.api.responses import Answer
from belljar.frontends.api.routing import Endpoint, ExactRoute
from belljar.frontends.api.server import begin, bind, finish, listen, prepare, stopping_at_signals, sweep
from belljar.settings import Settings
from belljar.telemetry import Log
from belljar.tools.web.access import Web

_log = logging.getLogger("belljar.proxy")
_BODY_BYTES = 1024 * 1024
_BODIES_BYTES = 64 * _BODY_BYTES


def build_app(settings: Settings, keys: KeyRing, proxy: Proxy) -> App:
    """The proxy's paths and /health."""
    callers = Callers(settings, keys)
    dialect = dataclasses.replace(DIALECT, refuse=_refuse_as_original)
    handlers = {"POST": partial(answer, proxy)}
    routes = [ExactRoute(path, Endpoint(callers, handlers, dialect, is_open=False)) for path in PATHS]
    routes.append(ExactRoute("/health", Endpoint(callers, {"GET": _show_health}, dialect, is_open=True)))
    memory = MemoryBudget(_BODY_BYTES, _BODIES_BYTES)
    return App(settings.server, callers, memory, _refuse, routes, dialect)


def _refuse_as_original(refusal: Refusal) -> Response:
    """Paths and methods that do not exist are refused in the words of the original's framework."""
    answer = fastapi.refuse(refusal)
    text = {404: "Not Found", 405: "Method Not Allowed"}.get(refusal.status)
    return answer if text is None else Answer({"detail": text}, refusal.status)


async def _show_health(request: Request) -> Response:
    return Answer({"status": "ok"})


def _refuse(error: Exception) -> Refusal:
    refusal = refusal_of(error)
    if refusal.code == "internal_error":
        _log.error("a request could not be answered: %s", error, exc_info=error)
    return refusal


async def serve_proxy(settings: Settings, log: Log) -> None:
    """Serve until SIGTERM or SIGINT; then finish open requests. A second signal ends that, too.

    Raises:
        InvalidSettings: the address cannot be used, or may not be used without a key; or a library is missing.
    """
    keys = KeyRing(KeyFile(keys_path(settings)), settings.server.api_key)
    web = Web(settings.web, settings.llm, settings.jail.uid_base)
    await web.open()
    try:
        with bind(settings, keys, settings.server.port) as listener, stopping_at_signals() as stop:
            app = build_app(settings, keys, Proxy(web, settings.web.proxy_requests_per_second))
            log.write("listening", url=listen(listener), api="proxy", version=__version__)
            await _run(prepare(settings, app), listener, stop)
    finally:
        await web.close()
        log.write("stopped")


async def _run(server: uvicorn.Server, listener: socket.socket, stop: asyncio.Event) -> None:
    sweeping = asyncio.create_task(sweep([server]))
    serving = begin(server, listener)
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([serving, stopping], return_when=asyncio.FIRST_COMPLETED)
        server.should_exit = True
        stop.clear()
        await finish([server], [serving], stop)
    finally:
        await cancel_all([sweeping, stopping])
