"""A client that hangs up ends its program, at whatever stage, and everything the program started."""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
import struct
from typing import Any

import pytest
from api_server import JSON, Server, Start


class Marker:
    """A child of the program that can be told from every other process of this machine."""

    def __init__(self, host: Any) -> None:
        self._host = host
        self._argument = f"98765.{secrets.randbelow(10**9)}"
        self.code = (
            f"import subprocess, time\nchild = subprocess.Popen(['sleep', '{self._argument}'])\n"
            "print('up', flush=True)\ntime.sleep(60)"
        )

    def is_there(self) -> bool:
        return any(self._argument in process.command for process in self._host.processes())


@pytest.fixture
def marker(host: Any) -> Marker:
    return Marker(host)


@pytest.mark.parametrize("accept", ["application/json", "application/x-ndjson", "text/event-stream"])
@pytest.mark.parametrize("abruptly", [False, True], ids=["closed", "reset"])
def test_running_program_ends(server: Server, host: Any, marker: Marker, accept: str, abruptly: bool) -> None:
    connection = server.connect()
    body = json.dumps({"code": marker.code, "timeout": 60})
    connection.request("POST", "/v1/execute", body, {**JSON, "Accept": accept})
    host.wait_until(marker.is_there, "the program runs")
    if abruptly:
        connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
    host.wait_until(lambda: not marker.is_there(), "its processes are gone", seconds=10)
    assert server.wait_for_line("execution", status="cancelled")


def test_batch_ends(server: Server, host: Any, marker: Marker) -> None:
    connection = server.connect()
    connection.request(
        "POST", "/v1/batch", json.dumps({"executions": [{"code": marker.code, "timeout": 60}] * 40}), JSON
    )
    host.wait_until(marker.is_there, "the first programs run")
    connection.close()
    host.wait_until(lambda: not marker.is_there(), "all are gone", seconds=20)
    assert server.execute("print(1)").body["stdout"] == "1\n"
    assert not marker.is_there(), "those that waited were never started"


def test_unread_stream_ends(server: Server, host: Any) -> None:
    """The reader takes nothing, so the server waits for room to send when he leaves."""
    code = "while True: print('x' * 10_000)"
    with server.streaming(code, timeout=60, limits={"output_kb": 16384, "cpu_seconds": 60}) as response:
        assert json.loads(response.readline())["event"] == "started"
    host.wait_until(lambda: server.ask("GET", "/health").body["running"] == 0, "the program is gone", seconds=10)


def test_half_a_body_leaves_nothing(server: Server, host: Any) -> None:
    with server.dial() as wire:
        wire.sendall(b"POST /v1/execute HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
        wire.sendall(b'Content-Length: 100\r\n\r\n{"code": "')
    assert server.execute("print(1)").status == 200


def test_waiting_execution_leaves_the_queue(start: Start, host: Any) -> None:
    with start(pool__max_running=1) as server:
        with server.streaming("import time; time.sleep(60)", timeout=60) as response:
            assert json.loads(response.readline())["event"] == "started"
            with contextlib.closing(server.connect()) as waiting:
                waiting.request("POST", "/v1/execute", b'{"code": "print(2)"}', JSON)
                host.wait_until(lambda: server.ask("GET", "/health").body["queued"] == 1, "it waits")
            host.wait_until(lambda: server.ask("GET", "/health").body["queued"] == 0, "it left")
        assert server.execute("print(3)").body["stdout"] == "3\n"
