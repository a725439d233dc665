"""A real server that speaks X-Master's dialect on a port of its own, and an outside world on loopback for its tools."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from belljar.settings import Settings
from tests.tools.outside import Outside, outside_world

MCP_TOOLS = Path(__file__).parents[2] / "tools" / "mcp_tools.py"
JSON = {"Content-Type": "application/json"}


class Answer(NamedTuple):
    """A whole response."""

    status: int
    headers: http.client.HTTPMessage
    text: str

    @property
    def body(self) -> Any:
        """The JSON in it."""
        return json.loads(self.text)


class Running:
    """A server, and the ports it has told of, by API."""

    def __init__(self, process: subprocess.Popen[bytes], apis: tuple[str, ...]) -> None:
        self.process = process
        self.lines: list[str] = []
        self.ports = {api: self._wait_for(api) for api in apis}
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
        self, method: str, path: str, body: Any = None, api: str = "xmaster", headers: dict[str, str] | None = None
    ) -> Answer:
        """One request; a body that is not bytes is sent as JSON."""
        content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.ports[api], timeout=90)) as connection:
            connection.request(method, path, content, {**JSON, **(headers or {})})
            response = connection.getresponse()
            return Answer(response.status, response.headers, response.read().decode())

    def execute(self, code: str, **asked: Any) -> dict[str, Any]:
        """POST /execute; the 200 body, whose keys are checked on the way."""
        answer = self.ask("POST", "/execute", {"code": code, **asked})
        assert answer.status == 200, answer
        body: dict[str, Any] = answer.body
        assert list(body) == ["output", "error", "execution_time", "session_id"]
        return body

    def items(self, session_id: str) -> list[dict[str, Any]]:
        """GET /get_mcp_result, to its end."""
        answer = self.ask("GET", f"/get_mcp_result/{session_id}")
        assert answer.status == 200, answer
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["transfer-encoding"] == "chunked"
        return [json.loads(line) for line in answer.text.splitlines()]


@pytest.fixture(scope="session")
def outside() -> Iterator[Outside]:
    with outside_world() as world:
        yield world


@pytest.fixture(scope="session")
def config(outside: Outside, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The original's configuration files, as its users have them."""
    directory = tmp_path_factory.mktemp("configs")
    model = {"url": f"{outside.url}/llm/chat/completions", "authorization": "Bearer secret-model-key", "retry_time": 1}
    files: dict[str, Any] = {
        "mcp_config.json": {"tool_api_url": "http://127.0.0.1:1234", "mcp_server_url": "http://127.0.0.1:30008"},
        "web_agent.json": {
            "serper_api_key": "secret-of-the-host",
            "search_region": "us",
            "search_lang": "en",
            "USE_MODEL": "gpt-4o",
            "BASE_MODEL": "qwen-32b",
            "user_prompt": {
                "search_conclusion": 'Asked: {user}\nPage: {info}\nReply with a JSON object {"content": …}'
            },
        },
        "paper_agent.json": {"USE_MODEL": "gpt-4o", "paperQA_prompt": "Paper: {pdf_info}\nAsked: {user_query}"},
        "llm_call.json": {"gpt-4o": model, "qwen-32b": model},
    }
    for name, content in files.items():
        (directory / name).write_text(json.dumps(content))
    return directory


@contextlib.contextmanager
def started(environ: dict[str, str], apis: tuple[str, ...], *arguments: str) -> Iterator[Running]:
    process = subprocess.Popen(
        [sys.executable, "-m", "belljar", *arguments], env=environ, stderr=subprocess.PIPE, start_new_session=True
    )
    try:
        yield Running(process, apis)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="session")
def environ(
    settings: Settings, sources: Path, outside: Outside, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """The settings of this test session, as variables."""
    return {
        **{name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ},
        "PYTHONPATH": str(sources),
        "BELLJAR_STATE_DIR": str(settings.state_dir),
        "BELLJAR_RUNTIME_DIR": str(settings.runtime_dir),
        "BELLJAR_JAIL_UID_BASE": str(settings.jail.uid_base),
        "BELLJAR_JAIL_CGROUP_PARENT": settings.jail.cgroup_parent,
        "BELLJAR_SERVER_PORT": "0",
        "BELLJAR_SERVER_KEYS_FILE": str(tmp_path_factory.mktemp("keys") / "none.json"),
        "BELLJAR_SERVER_LOG_FORMAT": "json",
        "BELLJAR_WEB_SERPER_URL": f"{outside.url}/serper",
        "BELLJAR_WEB_SCRAPE_URL": f"{outside.url}/scrape",
        "BELLJAR_WEB_ALLOWED_HOSTS": "127.0.0.1",
    }


@pytest.fixture(scope="session")
def server(environ: dict[str, str], config: Path) -> Iterator[Running]:
    """One server for all tests: X-Master's files, its port, and a proxy port beside."""
    servers = config.parent / "servers.toml"
    servers.write_text(f'[tools.servers.tests]\ncommand = ["{sys.executable}", "{MCP_TOOLS}", "stdio"]\n')
    arguments = ("serve", "--config", str(servers), "--xmaster-config", str(config), "--listen", "xmaster:0")
    with started(environ, ("native", "xmaster", "proxy"), *arguments, "--listen", "proxy:0") as running:
        yield running
