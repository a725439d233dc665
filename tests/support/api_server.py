"""The real server in a separate process, with fixtures and helpers to send it requests."""

from __future__ import annotations

import contextlib
import http.client
import json
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

_START_SECONDS = 60.0
JSON = {"Content-Type": "application/json"}


class Answer(NamedTuple):
    """A complete response."""

    status: int
    headers: http.client.HTTPMessage
    content: bytes

    @property
    def body(self) -> Any:
        """The body as JSON."""
        return json.loads(self.content)

    @property
    def code(self) -> str:
        """The error code; also checks the fields that every error has."""
        error = self.body["error"]
        assert set(self.body) == {"error"}
        assert set(error) == {"code", "message", "details"}
        assert error["message"]
        word: str = error["code"]
        return word


def take_answer(wire: socket.socket) -> Answer:
    """Read one response from a raw socket and ignore what follows."""
    with contextlib.closing(http.client.HTTPResponse(wire)) as response:
        response.begin()
        return Answer(response.status, response.headers, response.read())


class Server:
    """A running server."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self._lines: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self.text_lines: list[str] = []
        threading.Thread(target=self._read_log, daemon=True).start()
        self.port = int(self.wait_for_line("listening")["url"].rpartition(":")[2])
        self.host = f"127.0.0.1:{self.port}"

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as log:
            for line in log:
                try:
                    self._lines.put(json.loads(line))
                except ValueError:
                    self.text_lines.append(line.decode())
        self._lines.put(None)

    def wait_for_line(self, event: str, **fields: Any) -> dict[str, Any]:
        """Wait for the next log line of this event with these fields; skip other lines."""
        while True:
            line = self._lines.get(timeout=_START_SECONDS)
            assert line is not None, f"the server ended: {self.text_lines}"
            if line["event"] == event and all(line.get(name) == value for name, value in fields.items()):
                return line

    def wait_for_end_of_log(self) -> list[dict[str, Any]]:
        """Wait until the log is closed and return the remaining lines."""
        lines = list(iter(lambda: self._lines.get(timeout=_START_SECONDS), None))
        self._lines.put(None)  # stays at the end
        return lines

    def connect(self, timeout: float = 60.0) -> http.client.HTTPConnection:
        """A new connection."""
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def dial(self) -> socket.socket:
        """A raw socket."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=60.0)

    def ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None, key: str | None = None
    ) -> Answer:
        """Send a request and return the complete response. A body other than bytes is sent as JSON."""
        sent = dict(headers or {})
        if key is not None:
            sent["Authorization"] = f"Bearer {key}"
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        if body is not None:
            sent = {**JSON, **sent}
        with contextlib.closing(self.connect()) as connection:
            connection.request(method, path, body, sent)
            response = connection.getresponse()
            return Answer(response.status, response.headers, response.read())

    def execute(self, code: str, key: str | None = None, **asked: Any) -> Answer:
        """POST /v1/execute."""
        return self.ask("POST", "/v1/execute", {"code": code, **asked}, key=key)

    @contextlib.contextmanager
    def streaming(
        self, code: str, accept: str = "application/x-ndjson", path: str = "/v1/execute", **asked: Any
    ) -> Iterator[http.client.HTTPResponse]:
        """POST /v1/execute and let the caller read the response; leaving the block disconnects."""
        connection = self.connect()
        try:
            connection.request("POST", path, json.dumps({"code": code, **asked}), {**JSON, "Accept": accept})
            yield connection.getresponse()
        finally:
            connection.close()

    def stop(self) -> int:
        """Send SIGTERM and return the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)


Start = Callable[..., AbstractContextManager[Server]]


@pytest.fixture(scope="session")
def command(sources: Path) -> list[str]:
    """The command line of the working tree."""
    return [sys.executable, "-m", "belljar"]


@pytest.fixture(scope="session")
def start(command: list[str], environ: dict[str, str]) -> Start:
    """Start a server. Keywords are settings, with two underscores for each dot."""

    @contextlib.contextmanager
    def started(*arguments: str, **changed: Any) -> Iterator[Server]:
        variables = {f"BELLJAR_{name.upper().replace('__', '_')}": str(value) for name, value in changed.items()}
        process = subprocess.Popen(
            [*command, "serve", *arguments],
            env={**environ, **variables},
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            running = Server(process)
            yield running
            running.stop()
            running.wait_for_end_of_log()
        finally:
            process.kill()
            process.wait()

    return started


@pytest.fixture(scope="session")
def server(start: Start) -> Iterator[Server]:
    """A shared server for tests that do not change its state."""
    with start(server__body_bytes=2_000_000, server__bodies_bytes=8_000_000, server__grace_seconds=2) as running:
        yield running
