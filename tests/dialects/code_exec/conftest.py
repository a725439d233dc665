"""A real server with this dialect on a port of its own, and a client that behaves as the original one."""

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


class Answer(NamedTuple):
    """A whole response."""

    status: int
    kind: str
    text: str


class Running:
    """A server; `port` speaks the dialect alone, `native_port` everything."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.lines: list[str] = []
        self.native_port = self._wait_for("native")
        self.port = self._wait_for("code_exec")
        self.url, self.native_url = (f"http://127.0.0.1:{port}" for port in (self.port, self.native_port))
        threading.Thread(target=self._drain, daemon=True).start()

    def _wait_for(self, api: str) -> int:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.decode())
            told = json.loads(line)
            if told["event"] == "listening" and told["api"] == api:
                return int(told["url"].rpartition(":")[2])
        raise AssertionError(f"the server ended: {self.lines}")

    def _drain(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as log:
            for line in log:
                self.lines.append(line.decode())

    def ask(
        self,
        method: str,
        path: str,
        body: str | bytes | None = None,
        headers: Mapping[str, str] | None = None,
        port: int | None = None,
    ) -> Answer:
        """Send one request, with no header that is not given, and take its whole answer."""
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port or self.port, timeout=60)) as connection:
            content = body.encode() if isinstance(body, str) else body
            connection.request(method, path, content, dict(headers or {}))
            response = connection.getresponse()
            return Answer(response.status, response.headers.get_content_type(), response.read().decode())

    def post(self, path: str, **body: Any) -> str:
        """Send a body as the original client does, and take the text of a good answer."""
        answer = self.ask("POST", path, json.dumps(body))
        assert (answer.status, answer.kind) == (200, "text/plain"), answer
        return answer.text


Start = Callable[..., AbstractContextManager[Running]]


@pytest.fixture(scope="session")
def start(settings: Settings, sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Start:
    """Start a server; keywords are settings, with two underscores for the dot."""
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
    def started(**changed: Any) -> Iterator[Running]:
        variables = {f"BELLJAR_{name.upper().replace('__', '_')}": str(value) for name, value in changed.items()}
        process = subprocess.Popen(
            [sys.executable, "-m", "belljar", "serve", "--listen", "code_exec:0"],
            env={**environ, **variables},
            stderr=subprocess.PIPE,
        )
        try:
            yield Running(process)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(_START_SECONDS)
            finally:
                process.kill()
                process.wait()

    return started


@pytest.fixture(scope="session")
def server(start: Start, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One server for all tests that leave it as it was, with a bank of hashed tests."""
    bank = tmp_path_factory.mktemp("bank")
    (bank / "owner").mkdir()
    rows = [["assert f(1) == 2", "aa"], ["assert f(1) == 3", "bb"]]
    (bank / "owner" / "tests.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (bank / "columns.jsonl").write_text(json.dumps({"test": "assert f(2) == 3", "md5": "cc"}) + "\n")
    with start(server__hashed_tests_dir=bank) as running:
        yield running
