"""The real server in a separate process, accessed over sockets without a client library."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pytest

from belljar.settings import Settings

DEADLINE_SECONDS = 60.0
_SHOWN_LINES = 20


class Answer(NamedTuple):
    """A complete response."""

    status: int
    headers: http.client.HTTPMessage
    text: str

    @property
    def body(self) -> Any:
        """The body as JSON."""
        return json.loads(self.text)

    @property
    def kind(self) -> str:
        """The media type, without its parameters."""
        return self.headers.get_content_type()

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The body as JSON lines."""
        return [json.loads(line) for line in self.text.splitlines()]


class Running:
    """A running server and its ports by API; requests go to the last port by default."""

    usual_headers: ClassVar[Mapping[str, str]] = {"Content-Type": "application/json"}

    def __init__(self, process: subprocess.Popen[bytes], *apis: str) -> None:
        self.process = process
        self.log: list[str] = []
        self._events: queue.Queue[dict[str, Any] | None] = queue.Queue()
        threading.Thread(target=self._read_log, daemon=True).start()
        self.ports: dict[str, int] = {}
        while not set(apis) <= set(self.ports):
            line = self.wait_for_line(event="listening")
            self.ports[line["api"]] = int(line["url"].rpartition(":")[2])
        self.port = self.ports[apis[-1]]
        self.url = f"http://127.0.0.1:{self.port}"

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as log:
            for line in log:
                self.log.append(line.decode(errors="replace"))
                with contextlib.suppress(ValueError):
                    self._events.put(json.loads(line))
        self._events.put(None)

    def wait_for_line(self, **fields: Any) -> dict[str, Any]:
        """Wait for the next log line with these fields; skip other lines."""
        while True:
            line = self._events.get(timeout=DEADLINE_SECONDS)
            assert line is not None, f"the server ended: {self.log[-_SHOWN_LINES:]}"
            if all(line.get(name) == value for name, value in fields.items()):
                return line

    def connect(self, api: str | None = None) -> http.client.HTTPConnection:
        """A new connection."""
        port = self.port if api is None else self.ports[api]
        return http.client.HTTPConnection("127.0.0.1", port, timeout=1.5 * DEADLINE_SECONDS)

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        api: str | None = None,
    ) -> Answer:
        """Send a request and return the complete response. A body other than bytes or text is sent as JSON."""
        if body is not None and not isinstance(body, bytes):
            body = (body if isinstance(body, str) else json.dumps(body)).encode()
        with contextlib.closing(self.connect(api)) as connection:
            connection.request(method, path, body, {**self.usual_headers, **(headers or {})})
            response = connection.getresponse()
            return Answer(response.status, response.headers, response.read().decode())


Serve = Callable[..., AbstractContextManager[Any]]


@pytest.fixture(scope="session")
def environ(settings: Settings, sources: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment variables of a server with the settings of this test session and no other Belljar settings."""
    return {
        **{name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ},
        "PYTHONPATH": str(sources),
        "BELLJAR_STATE_DIR": str(settings.state_dir),
        "BELLJAR_RUNTIME_DIR": str(settings.runtime_dir),
        "BELLJAR_JAIL_UID_BASE": str(settings.jail.uid_base),
        "BELLJAR_JAIL_CGROUP_PARENT": settings.jail.cgroup_parent,
        "BELLJAR_SERVER_PORT": "0",
        "BELLJAR_SERVER_KEYS_FILE": str(tmp_path_factory.mktemp("keys") / "keys.json"),
        "BELLJAR_SERVER_LOG_FORMAT": "json",
    }


@pytest.fixture(scope="session")
def serve(environ: dict[str, str]) -> Serve:
    """Start `belljar ARGUMENTS` and wait for the ports of `apis`; on exit, stop it and check its exit code.

    Other keywords are environment variables in capitals, or settings with two underscores for each dot.
    """

    @contextlib.contextmanager
    def serving(
        *arguments: str, apis: tuple[str, ...] = ("native",), kind: type[Running] = Running, **changed: Any
    ) -> Iterator[Running]:
        variables = {
            name if name.isupper() else f"BELLJAR_{name.upper().replace('__', '_')}": str(value)
            for name, value in changed.items()
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "belljar", *arguments],
            env={**environ, **variables},
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            running = kind(process, *apis)
            yield running
            process.send_signal(signal.SIGTERM)
            assert process.wait(DEADLINE_SECONDS) == 0, running.log[-_SHOWN_LINES:]
        finally:
            process.kill()
            process.wait()

    return serving
