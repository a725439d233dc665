"""Clients that behave oddly, over bare sockets: half-closed, with a header twice, slow to read or to send."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from api_server import Server, Start, take_answer

from belljar.frontends.access.keys import Key, KeyFile

MIB = 1024 * 1024
_DEADLINE_SECONDS = 60.0


def _request(server: Server, body: bytes, *headers: str, path: str = "/v1/execute", length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    lines = [f"POST {path} HTTP/1.1", "Content-Type: application/json", f"Content-Length: {size}", *headers]
    if not any(each.startswith("Host:") for each in headers):
        lines.append(f"Host: {server.host}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def _code(code: str, **asked: object) -> bytes:
    return json.dumps({"code": code, **asked}).encode()


def test_a_half_closed_client_gets_its_answer(server: Server) -> None:
    with server.dial() as wire:
        wire.sendall(_request(server, _code("import time; time.sleep(1); print('late')")))
        wire.shutdown(socket.SHUT_WR)
        assert take_answer(wire).body["stdout"] == "late\n"
        assert wire.recv(1) == b"", "and the connection is closed"


def test_a_half_closed_client_gets_its_stream(server: Server) -> None:
    with server.dial() as wire:
        wire.sendall(_request(server, _code("print('late')"), "Accept: application/x-ndjson"))
        wire.shutdown(socket.SHUT_WR)
        assert b'"late\\n"' in take_answer(wire).content


def test_a_client_that_half_closes_within_a_stream_gets_the_rest_that_comes_soon(server: Server) -> None:
    code = "import time; print('soon', flush=True); time.sleep(0.3); print('late')"
    with server.dial() as wire:
        wire.sendall(_request(server, _code(code), "Accept: application/x-ndjson"))
        taken = b""
        while b"soon" not in taken:
            taken += wire.recv(65536)
        wire.shutdown(socket.SHUT_WR)
        while data := wire.recv(65536):
            taken += data
    assert b'"late\\n"' in taken
    assert taken.endswith(b"\r\n0\r\n\r\n")


def test_a_client_that_closes_both_ways_within_a_stream_ends_its_program(start: Start) -> None:
    with start() as server:
        with server.dial() as wire:
            code = "import time; print('soon', flush=True); time.sleep(9)"
            wire.sendall(_request(server, _code(code), "Accept: application/x-ndjson"))
            taken = b""
            while b"soon" not in taken:
                taken += wire.recv(65536)
        assert server.wait_for_line("execution")["status"] == "cancelled"


def test_a_client_that_closes_both_ways_ends_its_program(server: Server) -> None:
    with server.dial() as wire:
        wire.sendall(_request(server, _code("import time; time.sleep(9)")))
    line = server.wait_for_line("execution", status="cancelled")
    assert line["status"] == "cancelled"


@contextlib.contextmanager
def _relay(port: int) -> Iterator[int]:
    """The port of a relay that passes on half-closes, as docker-proxy does, and ends when neither way is open."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def pass_on(source: socket.socket, target: socket.socket) -> None:
            with contextlib.suppress(OSError):
                while data := source.recv(65536):
                    target.sendall(data)
            for each, how in ((source, socket.SHUT_RD), (target, socket.SHUT_WR)):
                with contextlib.suppress(OSError):
                    each.shutdown(how)

        def serve_one() -> None:
            client, _ = listening.accept()
            with client, socket.create_connection(("127.0.0.1", port)) as upstream:
                ways = [
                    threading.Thread(target=pass_on, args=each) for each in ((client, upstream), (upstream, client))
                ]
                for way in ways:
                    way.start()
                for way in ways:
                    way.join()

        serving = threading.Thread(target=serve_one)
        serving.start()
        yield listening.getsockname()[1]
        serving.join(_DEADLINE_SECONDS)
        assert not serving.is_alive(), "the relay was kept open"


def test_a_hang_up_behind_a_relay_ends_the_program(start: Start) -> None:
    with start() as server, _relay(server.port) as port:
        with socket.create_connection(("127.0.0.1", port)) as wire:
            wire.sendall(_request(server, _code("import time; time.sleep(20)", timeout=30)))
            _until(lambda: b"\nbelljar_running 1" in server.ask("GET", "/metrics").content, "it does not run")
        assert server.wait_for_line("execution")["status"] == "cancelled"


def test_a_half_closed_client_behind_a_relay_gets_its_answer(server: Server) -> None:
    with _relay(server.port) as port, socket.create_connection(("127.0.0.1", port), timeout=60) as wire:
        wire.sendall(_request(server, _code("import time; time.sleep(3); print('late')")))
        wire.shutdown(socket.SHUT_WR)
        assert take_answer(wire).body["stdout"] == "late\n"


@pytest.mark.parametrize("path", ["/v1/execute", "/v1/batch"])
def test_a_client_that_leaves_amid_a_large_event_is_not_our_fault(start: Start, path: str) -> None:
    one = {"code": "open('a', 'wb').write(bytes(40_000_000))", "artifacts": ["a"]}
    body = json.dumps(one if path == "/v1/execute" else {"executions": [one]}).encode()
    with start() as server:
        for _ in range(2):
            with server.dial() as wire:
                wire.sendall(_request(server, body, "Accept: application/x-ndjson", path=path))
                taken = 0
                while taken < MIB:
                    taken += len(wire.recv(65536))
            _until(lambda: _connections(server.port) == 0, "the connection is still there")
            assert server.execute("print(1)").status == 200
        assert b"internal_error" not in server.ask("GET", "/metrics").content
        assert server.stop() == 0
        errors = [line for line in server.wait_for_end_of_log() if line.get("level") in ("warning", "error")]
        assert not errors, json.dumps(errors)
        assert not any("Traceback" in line for line in server.text_lines)


def _connections(port: int) -> int:
    """How many the server has open."""
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return sum(line.split()[1].endswith(f":{port:04X}") and line.split()[3] in ("01", "08") for line in lines)


@pytest.mark.parametrize("header", ["Host: {host}", "Authorization: Bearer x", "Content-Type: application/json"])
def test_a_header_that_decides_something_comes_once(server: Server, header: str) -> None:
    twice = header.format(host=server.host)
    with server.dial() as wire:
        wire.sendall(_request(server, _code("print(1)"), twice, twice))
        answer = take_answer(wire)
    assert (answer.status, answer.code) == (400, "bad_request")


def _until(condition: Callable[[], bool], message: str) -> None:
    deadline = time.monotonic() + _DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, message
        time.sleep(0.05)


LARGE = {"code": "print('x' * (12 << 20))", "limits": {"output_kb": 16384}}
BOUNDS = {"server__body_bytes": 16 * MIB, "server__bodies_bytes": 96 * MIB}


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """A file with two keys, and the keys."""
    file = KeyFile(tmp_path_factory.mktemp("two") / "keys.json")
    return file.path, *(file.create(Key(name=name)) for name in ("own", "other"))


def _ask_and_do_not_read(server: Server, stack: contextlib.ExitStack, key: str) -> bytes:
    wire = stack.enter_context(server.dial())
    wire.sendall(_request(server, json.dumps(LARGE).encode(), f"Authorization: Bearer {key}"))
    return wire.recv(64)


def test_answers_that_are_not_read_refuse_what_their_owner_asks_next(start: Start, keys: tuple[Path, str, str]) -> None:
    path, own, other = keys
    with start(**BOUNDS, server__keys_file=path) as server:
        with contextlib.ExitStack() as stack:
            while b" 200 " in _ask_and_do_not_read(server, stack, own):
                pass
            refused = server.ask("POST", "/v1/execute", LARGE, key=own)
            assert (refused.status, refused.code) == (429, "overloaded")
            assert "server.bodies_bytes" in refused.body["error"]["message"]
            assert int(refused.headers["Retry-After"]) >= 1
            assert server.execute("print(1)", key=other, limits={"output_kb": 4096}).body["stdout"] == "1\n"
        _until(lambda: server.ask("POST", "/v1/execute", LARGE, key=own).status == 200, "memory was not given back")


@pytest.mark.parametrize("bytes_per_second", [0, 1000])
def test_a_client_that_hardly_reads_is_cut_off(start: Start, bytes_per_second: int) -> None:
    with start(**BOUNDS, server__send_seconds=2) as server, server.dial() as wire:
        wire.sendall(_request(server, json.dumps(LARGE).encode()))
        assert wire.recv(12) == b"HTTP/1.1 200"
        began = time.monotonic()
        with contextlib.suppress(ConnectionError):
            while not _is_reset(wire):
                assert time.monotonic() - began < _DEADLINE_SECONDS, "it may hold the answer for ever"
                wire.recv(bytes_per_second // 10 or 1, 0 if bytes_per_second else socket.MSG_PEEK)
                time.sleep(0.1)


def _is_reset(wire: socket.socket) -> bool:
    return wire.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == 7


def test_slow_bodies_take_only_the_room_that_they_have_filled(start: Start) -> None:
    with start(**{**BOUNDS, "server__bodies_bytes": 32 * MIB}) as server, contextlib.ExitStack() as stack:
        for _ in range(6):
            wire = stack.enter_context(server.dial())
            wire.sendall(_request(server, b'{"code": "', length=15 * MIB))
        answer = server.execute("print(1)", stdin="x" * 2 * MIB)
        assert answer.status == 200, answer.body


def test_bodies_under_way_are_bounded_for_each_caller(start: Start, keys: tuple[Path, str, str]) -> None:
    path, own, other = keys
    bounds = {**BOUNDS, "server__bodies_bytes": 32 * MIB}
    with start(**bounds, server__keys_file=path) as server, contextlib.ExitStack() as stack:
        seen = b""
        for _ in range(3):
            wire = stack.enter_context(server.dial())
            head = f"Authorization: Bearer {own}"
            wire.sendall(_request(server, b'{"code": "' + b"x" * 8 * MIB, head, length=15 * MIB))
        seen = wire.recv(64)
        assert b" 429 " in seen
        assert server.execute("print(1)", key=other, stdin="x" * 2 * MIB).status == 200
        assert server.execute("print(1)", key=own).status == 200, "small requests are served even so"
