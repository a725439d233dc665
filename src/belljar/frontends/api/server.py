"""`belljar serve`: binds addresses, starts the HTTP servers, handles signals and shuts down."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import os
import resource
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import uvicorn

from belljar import __version__
from belljar.aio import cancel_all
from belljar.assembly import build_engine, build_environments
from belljar.contract.errors import InvalidSettings
from belljar.engine.engine import Engine
from belljar.frontends.access.callers import AnswerReservations, Callers, MemoryBudget, is_loopback
from belljar.frontends.access.keys import KeyFile, KeyRing, keys_path
from belljar.frontends.api import dialects
from belljar.frontends.api.app import build_app
from belljar.frontends.api.connection import Bounds, bounded_connection, sweep_all
from belljar.frontends.api.context import Service
from belljar.frontends.api.dialects import find_listener
from belljar.frontends.api.dialects.api_proxy.routes import Proxy
from belljar.frontends.api.health import Health, Isolation
from belljar.frontends.mcp import http as mcp
from belljar.frontends.mcp.config import configure
from belljar.settings import Settings
from belljar.telemetry import Log, Telemetry
from belljar.tools.web.access import Web

FLUSH_SECONDS = 3.0  # after the grace period, for answers that are being sent
_SWEEP_SECONDS = 1.0
_BACKLOG = 4096


def bind(settings: Settings, keys: KeyRing, port: int) -> socket.socket:
    """A socket that is bound but not listening yet: clients that connect should be served at once.

    Raises:
        InvalidSettings: the address cannot be used, or may not be used without a key.
    """
    host = settings.server.host
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = min(found, key=lambda each: each[0] != socket.AF_INET)
    except OSError as error:
        raise InvalidSettings(f"server.host {host!r} is not an address of this machine: {error}") from error
    if not is_loopback(str(address[0])) and keys.is_empty:
        raise InvalidSettings(
            f"others can reach {host}, so a key is needed: create one with 'belljar key create NAME', or set "
            "BELLJAR_SERVER_API_KEY; or serve on 127.0.0.1. Nothing was started."
        )
    listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        if port:  # else two starting servers may be given the same free port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise InvalidSettings(f"cannot serve on {host} port {port}: {error.strerror}") from error
    listener.setblocking(False)
    return listener


def listen(listener: socket.socket) -> str:
    """Accept connections from now on; return the URL.

    Raises:
        InvalidSettings: another process listens there already. A socket that is only bound does not reserve its port.
    """
    host, port = listener.getsockname()[:2]
    try:
        listener.listen(_BACKLOG)
    except OSError as error:
        raise InvalidSettings(
            f"cannot serve on {host} port {port}: {error.strerror}; choose another (--port, --listen DIALECT:PORT)"
        ) from error
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@contextlib.contextmanager
def stopping_at_signals() -> Iterator[asyncio.Event]:
    """An event that SIGTERM and SIGINT set; clear it to notice the next signal."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    for number in before:
        loop.add_signal_handler(number, stop.set)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)


def prepare(settings: Settings, app: Any) -> uvicorn.Server:
    """A server for an ASGI application, with bounds on its connections."""
    server = settings.server
    bounds = Bounds(
        max_connections=min(server.max_connections, _raise_open_files() - 1024),
        head_seconds=server.head_seconds,
        send_seconds=server.send_seconds,
    )
    config = uvicorn.Config(
        app,
        http=bounded_connection(bounds),
        ws="none",
        loop="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        backlog=_BACKLOG,
        timeout_keep_alive=int(server.keep_alive_seconds),
        timeout_graceful_shutdown=int(server.grace_seconds + FLUSH_SECONDS),
    )
    return uvicorn.Server(config)


def begin(server: uvicorn.Server, listener: socket.socket) -> asyncio.Task[None]:
    """Serve until `server.should_exit`, and then until every answer is sent."""
    return asyncio.create_task(server._serve([listener]))  # not `serve`, which installs signal handlers


async def sweep(servers: Sequence[uvicorn.Server]) -> None:
    """Disconnect slow clients, until cancelled."""
    while True:
        await asyncio.sleep(_SWEEP_SECONDS)
        for server in servers:
            sweep_all(server.server_state.connections)


async def finish(
    servers: Sequence[uvicorn.Server],
    serving: Sequence[asyncio.Task[None]],
    stop: asyncio.Event,
    seconds: float | None = None,
) -> None:
    """Wait until every answer is sent; when `stop` is set, or after so many seconds, disconnect the rest."""
    impatient = asyncio.create_task(stop.wait())
    ended = asyncio.gather(*serving)
    either: tuple[asyncio.Future[Any], ...] = (ended, impatient)
    await asyncio.wait(either, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    impatient.cancel()
    if not ended.done():
        for server in servers:
            _hang_up(server)
    await ended


def _hang_up(server: uvicorn.Server) -> None:
    server.force_exit = True
    for connection in list(server.server_state.connections):
        if connection.transport is not None:
            connection.transport.abort()
    for task in list(server.server_state.tasks):
        task.cancel()


def _raise_open_files() -> int:
    """Raise the limit of open files as far as allowed: a server that reaches it cannot accept connections."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    now, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 20 if now == resource.RLIM_INFINITY else max(now, 2048)


_SWITCH_SECONDS = 0.001  # how long a busy thread may block the event loop


async def serve(settings: Settings, log: Log) -> None:
    """Serve until SIGTERM or SIGINT; then finish or cancel what runs, and leave nothing behind.

    Raises:
        InvalidSettings: the address cannot be used, or may not be used without a key.
        SandboxFault: no program can be run on this machine.
    """
    keys = KeyRing(KeyFile(keys_path(settings)), settings.server.api_key)
    extra = [find_listener(each) for each in settings.server.listen]
    listeners: list[socket.socket] = []
    mcp_config = configure(settings, os.environ)
    engine = build_engine(settings, runners=settings.server.runners)
    web = build_proxy_access(settings, [dialect.name for dialect, _ in extra])
    try:
        for port in (settings.server.port, *(port for _, port in extra)):
            listeners.append(bind(settings, keys, port))
        with stopping_at_signals() as stop:
            await _open(engine, stop)
            if stop.is_set():
                return
            if web is not None:
                await web.open()
            service = _assemble(settings, engine, keys, log, web)
            apps = [build_app(service, dialects.ALL)]
            apps += [build_app(service, [dialect], is_native=False) for dialect, _ in extra]
            endpoint = mcp.Endpoint(service, mcp_config)
            for app, prefix in itertools.product(apps, mcp.PREFIXES):
                app.mount(prefix, endpoint)
            servers = [prepare(settings, app) for app in apps]
            _tune()
            names = ["native", *(dialect.name for dialect, _ in extra)]
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
    """Web access for the API proxy, if it is served."""
    if settings.web.serve_proxy or "proxy" in listeners:
        return Web(settings.web, settings.llm, settings.jail.uid_base)
    return None


async def _open(engine: Engine, stop: asyncio.Event) -> None:
    """Open the engine, or stop opening it at a signal: building an environment takes minutes."""
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
    telemetry = Telemetry(log, engine.facts, shows_content=server.debug)
    engine.observe(telemetry)
    memory = MemoryBudget(server.body_bytes, server.bodies_bytes)
    engine.slots.reserve = AnswerReservations(memory, settings, callers.find).reserve
    return Service(
        settings=settings,
        engine=engine,
        environments=build_environments(settings),
        callers=callers,
        health=Health(engine, settings, telemetry),
        isolation=Isolation(settings),
        telemetry=telemetry,
        memory=memory,
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
        await cancel_all([*helpers, stopping])


async def _stop(
    servers: Sequence[uvicorn.Server],
    service: Service,
    endpoint: mcp.Endpoint,
    serving: Sequence[asyncio.Task[None]],
    stop: asyncio.Event,
) -> None:
    """Refuse new connections and programs at once. A second signal ends the grace period, also for slow clients."""
    for server in servers:
        server.should_exit = True
    stop.clear()
    grace_seconds = service.settings.server.grace_seconds
    closing = asyncio.create_task(service.engine.close(grace_seconds))
    impatient = asyncio.create_task(stop.wait())
    await asyncio.wait([closing, impatient], return_when=asyncio.FIRST_COMPLETED)
    seconds = None
    if not closing.done():
        closing.cancel()  # which ends only the grace period
        stop.clear()
        seconds = FLUSH_SECONDS
    with contextlib.suppress(asyncio.CancelledError):
        await closing
    impatient.cancel()
    await endpoint.close()  # its streams would stay open for the whole grace period
    await finish(servers, serving, stop, seconds)


def _tune() -> None:
    """Exempt objects that live as long as the server from garbage collection."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    sys.setswitchinterval(_SWITCH_SECONDS)
