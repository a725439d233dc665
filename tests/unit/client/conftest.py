"""Two servers on real sockets: one that answers as a test scripts it, and the real one."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from belljar.client import Client, Unreachable
from belljar.contract.execution import Outcome, Status, Usage
from belljar.settings import Settings

_DEADLINE_SECONDS = 30.0
_START_SECONDS = 90.0
_NOT_FOR_THE_SERVER = {"API_KEY", "BELLJAR_SERVER_API_KEY", "DEBUG", "MAX_EXECUTION_TIME", "MAX_MEMORY_MB"}


class Seen(NamedTuple):
    """A request as it arrived."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any
    at: float


Answer = Callable[["_Exchange"], None]


class ScriptedServer:
    """A server that answers each request with the next of its script, and the last one for ever."""

    def __init__(self) -> None:
        self.script: list[Answer] = []
        self.seen: list[Seen] = []
        self.running = 0
        self.most_running = 0
        self.lock = threading.Condition()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (_Exchange,), {"scripted": self}))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def is_idle(self) -> bool:
        """Whether every client is gone, now or before long."""
        with self.lock:
            return self.lock.wait_for(lambda: self.running == 0, _DEADLINE_SECONDS)

    # ---- what a script is made of

    def reply(self, status: int, body: object, **headers: str) -> Answer:
        """A whole answer; bytes are sent as they are, anything else as JSON."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()

        def answer(exchange: _Exchange) -> None:
            exchange.send_response(status)
            for name, value in headers.items():
                exchange.send_header(name.replace("_", "-"), value)
            exchange.send_header("Content-Length", str(len(content)))
            exchange.end_headers()
            exchange.wfile.write(content)

        return answer

    def refuse(self, status: int, code: str, message: str = "no", details: object = None, **headers: str) -> Answer:
        """An error as the API tells it."""
        return self.reply(status, {"error": {"code": code, "message": message, "details": details or {}}}, **headers)

    def outcome(self, **changed: Any) -> Answer:
        """A program that went well."""
        return self.reply(200, a_body(**changed))

    def hang_up(self) -> Answer:
        """The request was read; then the connection is gone."""
        return lambda exchange: exchange.end()

    def stream(self, lines: Iterable[object], then: Answer | None = None) -> Answer:
        """A stream of JSON lines; without `then` it ends as it should."""

        def answer(exchange: _Exchange) -> None:
            exchange.send_response(200)
            exchange.send_header("Content-Type", "application/x-ndjson")
            exchange.send_header("Transfer-Encoding", "chunked")
            exchange.end_headers()
            for line in lines:
                exchange.send_chunk(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n")
            if then is not None:
                then(exchange)
            else:
                exchange.send_chunk(b"")

        return answer

    def wait_for_hang_up(self) -> Answer:
        """Say nothing until the client leaves."""

        def answer(exchange: _Exchange) -> None:
            exchange.connection.settimeout(_DEADLINE_SECONDS)
            with contextlib.suppress(ConnectionError):
                assert exchange.connection.recv(1) == b""
            exchange.end()

        return answer


class _Exchange(BaseHTTPRequestHandler):
    """One connection to a scripted server."""

    protocol_version = "HTTP/1.1"
    scripted: ScriptedServer

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def do_PUT(self) -> None:
        self._answer()

    def do_DELETE(self) -> None:
        self._answer()

    def _answer(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        is_json = headers.get("content-type") == "application/json"
        body = (json.loads(content) if is_json else content) if content else None
        with self.scripted.lock:
            self.scripted.seen.append(Seen(self.command, self.path, headers, body, time.monotonic()))
            answer = self.scripted.script.pop(0) if len(self.scripted.script) > 1 else self.scripted.script[0]
            self.scripted.running += 1
            self.scripted.most_running = max(self.scripted.most_running, self.scripted.running)
            self.scripted.lock.notify_all()
        try:
            answer(self)
        except ConnectionError:
            self.close_connection = True
        finally:
            with self.scripted.lock:
                self.scripted.running -= 1
                self.scripted.lock.notify_all()

    def send_chunk(self, chunk: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
        self.wfile.flush()

    def end(self) -> None:
        """Close at once, without a word."""
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, format: str, *args: Any) -> None:
        """Tests talk enough."""


def a_body(**changed: Any) -> dict[str, Any]:
    """What POST /v1/execute answers."""
    outcome = Outcome(
        id="x_1",
        language="python",
        status=Status.OK,
        exit_code=0,
        signal=None,
        stdout="hi\n",
        stderr="",
        stdout_cut=False,
        stderr_cut=False,
        error=None,
        displays=(),
        artifacts=(),
        usage=Usage(wall_seconds=0.25),
    )
    return {**outcome.as_json(), **changed}


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    """A server under the test's command."""
    opened = ScriptedServer()
    opened.script = [opened.outcome()]
    yield opened
    opened.close()


@pytest.fixture
def body() -> Callable[..., dict[str, Any]]:
    """Makes what POST /v1/execute answers."""
    return a_body


@pytest.fixture(scope="session")
def real_url(settings: Settings, sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real server on a port of its own. One that does not start fails every test that needs it."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    log = tmp_path_factory.mktemp("server") / "log"
    environ = {
        **{name: value for name, value in os.environ.items() if name not in _NOT_FOR_THE_SERVER},
        "PYTHONPATH": str(sources),
        "BELLJAR_STATE_DIR": str(settings.state_dir),
        "BELLJAR_RUNTIME_DIR": str(tmp_path_factory.mktemp("client-run")),
        "BELLJAR_SERVER_KEYS_FILE": str(log.with_name("keys.json")),
        "BELLJAR_JAIL_UID_BASE": str(settings.jail.uid_base),
        "BELLJAR_JAIL_CGROUP_PARENT": settings.jail.cgroup_parent,
    }
    command = [sys.executable, "-m", "belljar", "serve", "--host", "127.0.0.1", "--port", str(port)]
    with log.open("wb") as output, subprocess.Popen(command, env=environ, stdout=output, stderr=output) as process:
        try:
            _wait_until_healthy(f"http://127.0.0.1:{port}", process, log)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(_DEADLINE_SECONDS)


def _wait_until_healthy(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    with Client(url) as client:
        while process.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(Unreachable):
                if client.health().ok:
                    return
            time.sleep(0.05)
    pytest.fail(f"the server did not start (exit {process.poll()}):\n{log.read_text(errors='replace')[-4000:]}")
