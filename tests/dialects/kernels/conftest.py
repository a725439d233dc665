"""A real server with the kernel dialect on a port of its own, and a client that reads its lines."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from belljar.settings import Settings

_START_SECONDS = 60.0
PREFIX = "/ai/sandbox/v1/api"


class Answer(NamedTuple):
    """A whole response."""

    status: int
    headers: http.client.HTTPMessage
    text: str

    @property
    def body(self) -> Any:
        """The JSON it holds."""
        return json.loads(self.text)

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The JSON lines it holds."""
        return [json.loads(line) for line in self.text.splitlines()]


class Kernels:
    """A running server, on the port of its dialect."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.native_port = self._wait_for("native")
        self.port = self._wait_for("kernels")
        threading.Thread(target=self._drain, daemon=True).start()

    def _wait_for(self, api: str) -> int:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            told = json.loads(line)
            if told["event"] == "listening" and told["api"] == api:
                return int(told["url"].rpartition(":")[2])
        raise AssertionError("the server ended")

    def _drain(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as log:
            for _ in log:
                pass

    def connect(self, port: int | None = None) -> http.client.HTTPConnection:
        """A connection of its own."""
        return http.client.HTTPConnection("127.0.0.1", port or self.port, timeout=60)

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        port: int | None = None,
    ) -> Answer:
        """Send one request and take its whole answer; a path without a prefix gets the usual one."""
        given = {"Content-Type": "application/json", **(headers or {})}
        content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        with contextlib.closing(self.connect(port)) as connection:
            connection.request(method, path, content, given)
            response = connection.getresponse()
            return Answer(response.status, response.headers, response.read().decode())

    def run(self, code: str, session_id: str | None = None, **more: Any) -> list[dict[str, Any]]:
        """The lines of one cell."""
        answer = self.ask("POST", f"{PREFIX}/execute", {"code": code, "session_id": session_id, **more})
        assert answer.status == 200, answer.text
        return answer.lines


Start = Callable[..., AbstractContextManager[Kernels]]


@pytest.fixture(scope="session")
def start_kernels(settings: Settings, sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Start:
    """Start a server; keywords are environment variables by the names that the original server reads."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    environ = {
        **kept,
        "PYTHONPATH": str(sources),
        "BELLJAR_STATE_DIR": str(settings.state_dir),
        "BELLJAR_RUNTIME_DIR": str(settings.runtime_dir),
        "BELLJAR_JAIL_UID_BASE": str(settings.jail.uid_base),
        "BELLJAR_JAIL_CGROUP_PARENT": settings.jail.cgroup_parent,
        "BELLJAR_SERVER_PORT": "0",
        "BELLJAR_SERVER_KEYS_FILE": str(tmp_path_factory.mktemp("keys") / "none.json"),
        "BELLJAR_SERVER_LOG_FORMAT": "json",
    }

    @contextlib.contextmanager
    def started(**variables: str) -> Iterator[Kernels]:
        process = subprocess.Popen(
            [sys.executable, "-m", "belljar", "serve", "--listen", "kernels:0"],
            env={**environ, **variables},
            stderr=subprocess.PIPE,
        )
        try:
            yield Kernels(process)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(_START_SECONDS)
            finally:
                process.kill()
                process.wait()

    return started


@pytest.fixture(scope="session")
def kernels(start_kernels: Start) -> Iterator[Kernels]:
    """One server for all tests that leave it as it was."""
    with start_kernels() as running:
        yield running
