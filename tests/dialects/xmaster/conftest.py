"""A real server with X-Master's dialect on its own port, and web services on loopback for its tools."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from server_process import Running, Serve

from tests.unit.tools.outside import Outside, outside_world

MCP_TOOLS = Path(__file__).parents[2] / "unit" / "tools" / "mcp_tools.py"


class XMaster(Running):
    """A running server, on the port of its dialect."""

    def execute(self, code: str, **asked: Any) -> dict[str, Any]:
        """POST /execute; check status and keys, and return the body."""
        answer = self.ask("POST", "/execute", {"code": code, **asked})
        assert answer.status == 200, answer
        body: dict[str, Any] = answer.body
        assert list(body) == ["output", "error", "execution_time", "session_id"]
        return body

    def items(self, session_id: str) -> list[dict[str, Any]]:
        """GET /get_mcp_result and read it to the end."""
        answer = self.ask("GET", f"/get_mcp_result/{session_id}")
        assert answer.status == 200, answer
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["transfer-encoding"] == "chunked"
        return answer.lines


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


@pytest.fixture(scope="session")
def serve_here(serve: Serve, outside: Outside) -> Serve:
    """Start a server whose web services are on loopback."""
    return functools.partial(
        serve,
        web__serper_url=f"{outside.url}/serper",
        web__scrape_url=f"{outside.url}/scrape",
        web__allowed_hosts="127.0.0.1",
    )


@pytest.fixture(scope="session")
def server(serve_here: Serve, config: Path) -> Iterator[XMaster]:
    """A server shared by all tests, with X-Master's files, its port and a proxy port."""
    servers = config.parent / "servers.toml"
    servers.write_text(f'[tools.servers.tests]\ncommand = ["{sys.executable}", "{MCP_TOOLS}", "stdio"]\n')
    files = ("--config", str(servers), "--xmaster-config", str(config))
    ports = ("--listen", "xmaster:0", "--listen", "proxy:0")
    with serve_here("serve", *files, *ports, apis=("native", "proxy", "xmaster"), kind=XMaster) as running:
        yield running
