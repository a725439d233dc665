"""The life of a server: refuse to start unsafely, open, serve, stop gracefully."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import os
import socket
import sys
from collections.abc import Sequence

import uvicorn

from belljar import __version__
from belljar.assembly import build_engine, build_environments
from belljar.engine.engine import Engine
from belljar.frontends.access.callers import Callers
from belljar.frontends.access.keys import KeyFile, KeyRing, keys_path
from belljar.frontends.api import dialects
from belljar.frontends.api.app import App
from belljar.frontends.api.context import Service
from belljar.frontends.api.dialects import find_listener
from belljar.frontends.api.dialects.api_proxy.routes import Proxy
from belljar.frontends.api.health import Health
from belljar.frontends.api.isolation import Isolation
from belljar.frontends.api.memory_budget import AnswerRoom, BodyRoom
from belljar.frontends.api.origins import Guard, is_loopback
from belljar.frontends.api.server import (
    FLUSH_SECONDS,
    begin,
    bind,
    finish,
    listen,
    prepare,
    stopping_at_signals,
    sweep,
)
from belljar.frontends.mcp import http as mcp
from belljar.frontends.mcp.choices import offer_of
from belljar.settings import Settings
from belljar.telemetry import Log, Telemetry
from belljar.tools.web.access import Web

_SWITCH_SECONDS = 0.001  # that a thread at work keeps the loop waiting each time


async def serve(settings: Settings, log: Log) -> None:
    """Serve until SIGTERM or SIGINT; then finish or cancel what runs, and leave nothing behind.

    Raises:
        InvalidSettings: the address cannot be used, or may not be used without a key.
        SandboxFault: no program can be run on this machine.
    """
    keys = KeyRing(KeyFile(keys_path(settings)), settings.server.api_key)
    asked = [find_listener(each) for each in settings.server.listen]
    listeners: list[socket.socket] = []
    offer = offer_of(settings, os.environ)
    engine = build_engine(settings, runners=settings.server.runners)
    web = build_proxy_access(settings, [dialect.name for dialect, _ in asked])
    try:
        for port in (settings.server.port, *(port for _, port in asked)):
            listeners.append(bind(settings, keys, port))
        with stopping_at_signals() as stop:
            await _open(engine, stop)
            if stop.is_set():
                return
            if web is not None:
                await web.open()
            service = _assemble(settings, engine, keys, log, web)
            apps = [App(service, dialects.ALL), *(App(service, [dialect], is_native=False) for dialect, _ in asked)]
            endpoint = mcp.Endpoint(service, offer)
            for app, prefix in itertools.product(apps, mcp.PREFIXES):
                app.mount(prefix, endpoint)
            servers = [prepare(settings, app) for app in apps]
            _tune()
            names = ["native", *(dialect.name for dialect, _ in asked)]
            urls = [listen(listener) for listener in listeners]
            for name, url in zip(names, urls, strict=True):
                log.write("listening", url=url, api=name, version=__version__, needs_key=not keys.is_empty)
            await _run(servers, listeners, service, endpoint, stop)
    finally:
        for listener in listeners:
            listener.close()
        await engine.close(0.0)
        if web is not None:
            await web.close()
        log.write("stopped")


def build_proxy_access(settings: Settings, listeners: Sequence[str]) -> Web | None:
    """What the API proxy works with, where it is served."""
    if settings.web.serve_proxy or "proxy" in listeners:
        return Web(settings.web, settings.llm, settings.jail.uid_base)
    return None


async def _open(engine: Engine, stop: asyncio.Event) -> None:
    """Building an environment takes minutes: being told to stop must not wait for it."""
    opening = asyncio.create_task(engine.open())
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait([opening, stopping], return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if stop.is_set():
        opening.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await opening
    else:
        opening.result()


def _assemble(settings: Settings, engine: Engine, keys: KeyRing, log: Log, web: Web | None = None) -> Service:
    server = settings.server
    callers = Callers(settings, keys)
    if not is_loopback(server.host) and server.host != "localhost":
        callers.require_keys()
    telemetry = Telemetry(log, engine.facts, shows_content=server.debug)
    engine.sessions.on_end = telemetry.ended
    room = BodyRoom(server.body_bytes, server.bodies_bytes)
    engine.reserve = AnswerRoom(room, settings, callers.find).reserve
    return Service(
        settings=settings,
        engine=engine,
        environments=build_environments(settings),
        callers=callers,
        guard=Guard(server),
        health=Health(engine, settings),
        isolation=Isolation(settings),
        telemetry=telemetry,
        room=room,
        proxy=None if web is None else Proxy(web, settings.web.proxy_requests_per_second),
    )


async def _run(
    servers: Sequence[uvicorn.Server],
    listeners: Sequence[socket.socket],
    service: Service,
    endpoint: mcp.Endpoint,
    stop: asyncio.Event,
) -> None:
    background = (service.health.watch(), sweep(servers), endpoint.warm())
    helpers = [asyncio.create_task(each) for each in background]
    serving = [begin(server, listener) for server, listener in zip(servers, listeners, strict=True)]
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([*serving, stopping], return_when=asyncio.FIRST_COMPLETED)
        await _stop(servers, service, endpoint, serving, stop)
    finally:
        for each in (*helpers, stopping):
            each.cancel()
        await asyncio.gather(*helpers, stopping, return_exceptions=True)


async def _stop(
    servers: Sequence[uvicorn.Server],
    service: Service,
    endpoint: mcp.Endpoint,
    serving: Sequence[asyncio.Task[None]],
    stop: asyncio.Event,
) -> None:
    """Both at once: no new connections, no new programs. A second signal ends the grace, and slow clients' time."""
    for server in servers:
        server.should_exit = True
    stop.clear()
    grace_seconds = service.settings.server.grace_seconds
    closing = asyncio.create_task(service.engine.close(grace_seconds))
    impatient = asyncio.create_task(stop.wait())
    await asyncio.wait([closing, impatient], return_when=asyncio.FIRST_COMPLETED)
    seconds = None
    if not closing.done():
        closing.cancel()  # which ends only the grace
        stop.clear()
        seconds = FLUSH_SECONDS
    with contextlib.suppress(asyncio.CancelledError):
        await closing
    impatient.cancel()
    await endpoint.close()  # whose streams would otherwise stay open for the whole grace
    await finish(servers, serving, stop, seconds)


def _tune() -> None:
    """What lives as long as the server need not be looked through for garbage again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    sys.setswitchinterval(_SWITCH_SECONDS)
