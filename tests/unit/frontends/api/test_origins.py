"""Who may speak to us at all: Host, Origin, the kind of body, and how large it is."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from api_server import Answer, Server, Start, take_answer

CODE = b'{"code": "print(1)"}'


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:{port}", "127.0.0.1:{port}", "[::1]:{port}", "10.1.2.3", "LOCALHOST"]
)
def test_own_names_and_addresses_are_fine(server: Server, host: str) -> None:
    assert server.ask("GET", "/health", headers={"Host": host.format(port=server.port)}).status == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example:80", "[evil]", "a@localhost", ""]
)
@pytest.mark.parametrize("path", ["/", "/health", "/v1/execute"])
def test_foreign_host_is_refused_everywhere(server: Server, host: str, path: str) -> None:
    answer = server.ask("POST" if path == "/v1/execute" else "GET", path, headers={"Host": host})
    assert (answer.status, answer.code) == (403, "host_not_allowed")


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "https://localhost", "http://127.0.0.1:1", "file://", ""]
)
def test_foreign_origin_is_refused(server: Server, origin: str) -> None:
    answer = server.ask("POST", "/v1/execute", CODE, {"Origin": origin})
    assert (answer.status, answer.code) == (403, "origin_not_allowed")
    assert "access-control-allow-origin" not in answer.headers


def test_own_page_may_call(server: Server) -> None:
    answer = server.ask("POST", "/v1/execute", CODE, {"Origin": f"http://{server.host}"})
    assert answer.status == 200


@pytest.mark.parametrize(
    "kind",
    ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "", "application/jsonx"],
)
def test_only_declared_json_is_read(server: Server, kind: str) -> None:
    answer = server.ask("POST", "/v1/execute", CODE, {"Content-Type": kind})
    assert (answer.status, answer.code) == (400, "not_json")
    assert server.ask("POST", "/v1/execute", CODE, {"Content-Type": "Application/JSON; charset=utf-8"}).status == 200


def test_listed_names_and_origins_are_allowed(start: Start) -> None:
    with start(server__allowed_hosts="box.example", server__allowed_origins="https://app.example") as server:
        assert server.ask("GET", "/health", headers={"Host": "box.example:80"}).status == 200
        sent = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST"}
        preflight = server.ask("OPTIONS", "/v1/execute", headers=sent)
        assert preflight.status == 204
        assert preflight.headers["access-control-allow-origin"] == "https://app.example"
        answer = server.ask("POST", "/v1/execute", CODE, sent)
        assert (answer.status, answer.headers["access-control-allow-origin"]) == (200, "https://app.example")


def test_declared_hundred_megabytes_are_refused_unread(server: Server) -> None:
    with server.dial() as wire:
        wire.sendall(_head(server, b"Content-Length: 100000000"))
        assert take_answer(wire).code == "too_large"


def test_undeclared_hundred_megabytes_are_not_kept(server: Server) -> None:
    server.ask("POST", "/mcp", {})  # else the server may load the MCP SDK in the background while we count
    before = _resident_kilobytes(server)
    piece = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
    with server.dial() as wire:
        wire.sendall(_head(server, b"Transfer-Encoding: chunked"))
        with contextlib.suppress(ConnectionError):
            for _ in range(100):
                wire.sendall(piece)
        assert take_answer(wire).code == "too_large"
    assert _resident_kilobytes(server) - before < 30_000


def _dial_with_room(server: Server) -> socket.socket:
    """A request whose body the server waits for; bodies of earlier tests may still hold room for a moment."""
    deadline = time.monotonic() + 20
    while True:
        wire = server.dial()
        wire.sendall(_head(server, b"Expect: 100-continue\r\nContent-Length: 1900000"))
        if wire.recv(100).startswith(b"HTTP/1.1 100"):
            return wire
        wire.close()
        assert time.monotonic() < deadline


def test_many_large_bodies_together_are_refused(server: Server) -> None:
    """Room for 8 MB in all: a few bodies of 1.9 MB may have arrived, the next one may not."""
    body = b'{"code": "print(1)", "stdin": "' + b"x" * 1_900_000 + b'"}'
    deadline = time.monotonic() + 30

    def send_until(is_accepted: bool, otherwise: Callable[[], object] = lambda: None) -> Answer:
        while ((answer := server.ask("POST", "/v1/execute", body)).status == 200) != is_accepted:
            assert time.monotonic() < deadline
            otherwise()
        return answer

    send_until(is_accepted=True)  # bodies of earlier tests may hold room for a moment
    with contextlib.ExitStack() as wires:

        def hold_room() -> None:
            wire = wires.enter_context(_dial_with_room(server))
            with contextlib.suppress(ConnectionError):  # the server refuses this one itself
                wire.sendall(b" " * 1_890_000)  # and the rest is never sent

        answer = send_until(is_accepted=False, otherwise=hold_room)
        assert (answer.status, answer.code) == (429, "overloaded")
        assert server.execute("print(1)").status == 200, "a small one still finds room"
    send_until(is_accepted=True)


def test_who_sends_nothing_is_let_go(start: Start) -> None:
    with (
        start(server__head_seconds=0.5) as server,
        server.dial() as silent,
        server.dial() as half,
        server.dial() as drip,
    ):
        half.sendall(b"POST /v1/execute HTTP/1.1\r\nHost: localhost\r\n")
        drip.sendall(_head(server, b"Content-Length: 1000") + b"{")
        for wire in (silent, half, drip):
            with contextlib.suppress(ConnectionError):
                assert wire.recv(1) == b""


def test_who_does_not_read_is_let_go(start: Start, tmp_path: Path) -> None:
    with start(server__send_seconds=1) as server, server.dial() as wire:
        body = json.dumps({"code": "print('x' * 12_000_000)", "limits": {"output_kb": 16000}}).encode()
        wire.sendall(_head(server, b"Content-Length: %d" % len(body)) + body)
        server.wait_for_line("execution")
        deadline = time.monotonic() + 30
        while _connections(server) > 1:
            assert time.monotonic() < deadline


def test_connections_are_bounded(start: Start) -> None:
    with start(server__max_connections=3) as server, contextlib.ExitStack() as wires:
        for _ in range(3):
            wires.enter_context(server.dial())
        with server.dial() as wire:
            assert take_answer(wire).status == 503


def _head(server: Server, header: bytes) -> bytes:
    return b"POST /v1/execute HTTP/1.1\r\nHost: %b\r\nContent-Type: application/json\r\n%b\r\n\r\n" % (
        server.host.encode(),
        header,
    )


def _resident_kilobytes(server: Server) -> int:
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0])


def _connections(server: Server) -> int:
    """Sockets in state ESTABLISHED on the server's side, the one of this question aside."""
    local = f":{server.port:04X}"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return 1 + sum(row[1].endswith(local) and row[3] == "01" for row in rows)
