"""A server stops within its grace period, or at once on a second signal, whatever its clients do."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from server_process import Running, Serve

from belljar.frontends.api.server import begin, finish, prepare
from belljar.settings import ServerSettings, Settings

STOP_SECONDS = 30.0
SERVERS = [
    pytest.param(("proxy", "--port", "0"), "proxy", "/search", id="proxy"),
    pytest.param(("serve",), "native", "/v1/execute", id="serve"),
]


def half_a_request(running: Running, api: str, path: str) -> socket.socket:
    """A connection that has sent only one byte of its request body."""
    lines = (
        f"POST {path} HTTP/1.1",
        "Host: localhost",
        "Content-Type: application/json",
        "Content-Length: 100",
        "Expect: 100-continue",
    )
    wire = socket.create_connection(("127.0.0.1", running.ports[api]), timeout=60)
    wire.sendall("\r\n".join((*lines, "", "")).encode())
    assert wire.recv(100).startswith(b"HTTP/1.1 100")
    wire.sendall(b"{")
    return wire


def wait_until_closed(running: Running, api: str) -> None:
    """Wait until connections are refused: the server has handled the signal."""
    with contextlib.suppress(ConnectionError):
        while True:
            with contextlib.closing(running.connect(api)) as connection:
                connection.connect()


@pytest.mark.parametrize(("arguments", "api", "path"), SERVERS)
def test_the_second_signal_ends_it_at_once(serve: Serve, arguments: tuple[str, ...], api: str, path: str) -> None:
    patient = {"server__grace_seconds": 300, "server__head_seconds": 300}
    with serve(*arguments, apis=(api,), **patient) as running, half_a_request(running, api, path):
        running.process.send_signal(signal.SIGTERM)
        wait_until_closed(running, api)
        assert running.process.poll() is None, "it still waits for the rest of the request"
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(STOP_SECONDS) == 0


@pytest.mark.parametrize(("arguments", "api", "path"), SERVERS)
def test_half_a_request_is_dropped_after_the_grace_period(
    serve: Serve, arguments: tuple[str, ...], api: str, path: str
) -> None:
    hasty = {"server__grace_seconds": 1, "server__head_seconds": 300}
    with serve(*arguments, apis=(api,), **hasty) as running, half_a_request(running, api, path):
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(STOP_SECONDS) == 0


@pytest.fixture
def silent_web() -> Iterator[socket.socket]:
    """A web server that accepts requests and never responds."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(60)
        yield listener


def test_the_second_signal_ends_a_search(serve: Serve, silent_web: socket.socket) -> None:
    outside = {"web__serper_url": f"http://127.0.0.1:{silent_web.getsockname()[1]}/", "web__allowed_hosts": "127.0.0.1"}
    with (
        serve("proxy", "--port", "0", apis=("proxy",), server__grace_seconds=300, **outside) as running,
        contextlib.closing(running.connect("proxy")) as client,
    ):
        body = json.dumps({"query": "bells", "serper_api_key": "a key"})
        client.request("POST", "/search", body, running.usual_headers)
        with silent_web.accept()[0]:
            running.process.send_signal(signal.SIGTERM)
            wait_until_closed(running, "proxy")
            running.process.send_signal(signal.SIGTERM)
            assert running.process.wait(STOP_SECONDS) == 0


def test_the_proxy_disconnects_silent_clients(serve: Serve) -> None:
    with (
        serve("proxy", "--port", "0", apis=("proxy",), server__head_seconds=0.5) as running,
        half_a_request(running, "proxy", "/search") as wire,
        contextlib.suppress(ConnectionError),
    ):
        assert wire.recv(1) == b""


def test_two_servers_in_one_process_have_separate_limits() -> None:
    async def answer(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    async def status_of_the_second_client(port: int) -> bytes:
        first, second = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        try:
            second[1].write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            return (await second[0].readline()).split()[1]
        finally:
            for _, writer in (first, second):
                writer.close()

    async def compare() -> None:
        listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
        bounds = [ServerSettings(max_connections=most) for most in (1, 100)]
        servers = [prepare(Settings(server=each), answer) for each in bounds]
        serving = [begin(*each) for each in zip(servers, listeners, strict=True)]
        seen = [await status_of_the_second_client(each.getsockname()[1]) for each in listeners]
        for server in servers:
            server.should_exit = True
        await finish(servers, serving, asyncio.Event())
        assert seen == [b"503", b"200"]

    asyncio.run(compare())
