"""`belljar proxy`: X-Master's API proxy alone, without a sandbox."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Mapping
from typing import Any

import uvicorn

from belljar import __version__
from belljar.frontends.access.callers import Callers, MemoryBudget
from belljar.frontends.access.keys import KeyFile, KeyRing, keys_path
from belljar.frontends.access.refusals import Refusal, refusal_of
from belljar.frontends.api.app import Guard, check_repeated
from belljar.frontends.api.dialects import fastapi
from belljar.frontends.api.dialects.api_proxy.routes import PATHS, Proxy, check_may_use
from belljar.frontends.api.request import Request
from belljar.frontends.api.responses import Receive, Send, encode_json, reply
from belljar.frontends.api.server import begin, bind, finish, listen, prepare, stopping_at_signals, sweep
from belljar.settings import Settings
from belljar.telemetry import Log
from belljar.tools.web.access import Web

_log = logging.getLogger("belljar.proxy")
_BODY_BYTES = 1024 * 1024
_BODIES_BYTES = 64 * _BODY_BYTES


class ProxyApp:
    """An ASGI application with the proxy's paths and a /health."""

    def __init__(self, settings: Settings, keys: KeyRing, proxy: Proxy) -> None:
        self._guard = Guard(settings.server)
        self._callers = Callers(settings, keys)
        self._proxy = proxy
        self._memory = MemoryBudget(_BODY_BYTES, _BODIES_BYTES)

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope, dict(scope["headers"]), receive, send, self._memory, self._callers.unidentified)
        try:
            check_repeated(scope["headers"])
            self._guard.check(request.headers)
            await reply(send, encode_json(await self._answer(scope, request)))
        except ConnectionError:
            return
        except Exception as error:  # noqa: BLE001  the boundary of this API: every error becomes an answer
            refusal = refusal_of(error)
            if refusal.code == "internal_error":
                _log.error("a request could not be answered: %s", error, exc_info=error)
            await reply(send, fastapi.refuse(refusal).body, refusal.status, headers=refusal.headers)
        except asyncio.CancelledError:
            _log.warning("a request was still open at the end of the grace period")
        finally:
            request.release()

    async def _answer(self, scope: Mapping[str, Any], request: Request) -> Any:
        path, method = scope["path"], scope["method"]
        if path == "/health" and method == "GET":
            return {"status": "ok"}
        if path not in PATHS:
            raise Refusal(404, "not_found", "Not Found")
        if method != "POST":
            raise Refusal(405, "method_not_allowed", "Method Not Allowed", headers=((b"allow", b"POST"),))
        address = scope["client"][0] if scope["client"] else ""
        request.caller = self._callers.identify(request.headers, address)
        check_may_use(request.caller)
        return await self._proxy.answer(path, await request.read(is_json=False), address)


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
            app = ProxyApp(settings, keys, Proxy(web, settings.web.proxy_requests_per_second))
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
        for each in (sweeping, stopping):
            each.cancel()
        await asyncio.gather(sweeping, stopping, return_exceptions=True)
