"""What every HTTP server of ours does alike: its address, the bounds of its connections, its signals and its end."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import signal
import socket
from collections.abc import Iterator, Sequence
from typing import Any

import uvicorn

from belljar.contract.errors import InvalidSettings
from belljar.frontends.access.keys import KeyRing
from belljar.frontends.api.connection import Bounds, bounded_connection, sweep_all
from belljar.frontends.api.origins import is_loopback
from belljar.settings import Settings

FLUSH_SECONDS = 3.0  # after the grace, for answers on their way
_SWEEP_SECONDS = 1.0
_BACKLOG = 4096


def bind(settings: Settings, keys: KeyRing, port: int) -> socket.socket:
    """A socket that is bound, but not listening: who connects should be served at once.

    Raises:
        InvalidSettings: the address cannot be used, or may not be used without a key.
    """
    host = settings.server.host
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = min(found, key=lambda each: each[0] != socket.AF_INET)
    except OSError as error:
        raise InvalidSettings(f"server.host {host!r} is no address of this machine: {error}") from error
    if not is_loopback(str(address[0])) and keys.is_empty:
        raise InvalidSettings(
            f"others could reach {host}, so a key is needed: make one with 'belljar key create NAME', or set "
            "BELLJAR_SERVER_API_KEY; or serve on 127.0.0.1. Nothing was started."
        )
    listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        if port:  # else two servers that are still getting ready may be given the same free one
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise InvalidSettings(f"cannot serve on {host} port {port}: {error.strerror}") from error
    listener.setblocking(False)
    return listener


def listen(listener: socket.socket) -> str:
    """From here on clients can connect; where they find us.

    Raises:
        InvalidSettings: somebody else has been quicker. A socket that is only bound keeps nobody from the same address.
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
    """An event that SIGTERM and SIGINT set; who has heard it clears it, to hear the next one."""
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
    """A server for an ASGI application, with bounds of its own for its connections."""
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
    """Serve until `server.should_exit`, and then until every answer is given."""
    return asyncio.create_task(server._serve([listener]))  # not `serve`: signals are ours


async def sweep(servers: Sequence[uvicorn.Server]) -> None:
    """Let go of slow clients, for ever."""
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
    """Wait until every answer is given; when `stop` is set, or after so many seconds, hang up on who is left."""
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
    """As many descriptors as we may have; a server that runs out can accept nobody."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    now, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 20 if now == resource.RLIM_INFINITY else max(now, 2048)
