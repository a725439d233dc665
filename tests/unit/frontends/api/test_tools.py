"""Tools over the native API: who may use which, and what is told of calls."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from api_server import Server, Start

MCP_TOOLS = Path(__file__).parents[2] / "tools" / "mcp_tools.py"
ADD = "import tools\nprint(tools.add(1))"


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("settings") / "tools.toml"
    path.write_text(f'[tools.servers.tests]\ncommand = ["{sys.executable}", "{MCP_TOOLS}", "stdio"]\n')
    return path


@pytest.fixture(scope="module")
def serving(start: Start, config: Path) -> Iterator[Server]:
    with start("--config", str(config)) as running:
        yield running


@pytest.mark.parametrize("tools", [True, ["add"], ["add", "pid"]])
def test_tools_that_are_asked_for_are_there(serving: Server, tools: Any) -> None:
    body = serving.execute(ADD, tools=tools, timeout=30).body
    assert (body["status"], body["stdout"]) == ("ok", "3\n")
    assert [(call["tool"], call["ok"]) for call in body["tool_calls"]] == [("add", True)]
    assert body["tool_calls"][0]["seconds"] > 0


def test_tools_that_are_not_asked_for_are_not_there(serving: Server) -> None:
    assert serving.execute(ADD).body["error"]["type"] == "ModuleNotFoundError"
    assert "unknown tool 'add'" in serving.execute(ADD, tools=["pid"]).body["error"]["message"]


def test_an_unknown_tool_is_refused_with_those_that_are_known(serving: Server) -> None:
    answer = serving.execute(ADD, tools=["sudo"])
    assert (answer.status, answer.code) == (422, "unknown_tool")
    assert "add" in answer.body["error"]["details"]["known"]


def test_calls_are_events_of_a_stream(serving: Server) -> None:
    with serving.streaming(ADD, tools=True) as response:
        events = [json.loads(line) for line in response]
    told = {event["event"]: event for event in events}
    assert told["tool_call"] == {"event": "tool_call", "number": 1, "tool": "add", "arguments": {"a": 1, "b": 2}}
    assert (told["tool_result"]["number"], told["tool_result"]["result"], told["tool_result"]["ok"]) == (1, 3, True)
    assert [event["event"] for event in events][-1] == "finished"
    assert events[-1]["tool_calls"][0]["tool"] == "add"


def test_a_session_has_tools(serving: Server) -> None:
    session = serving.ask("POST", "/v1/sessions", {"tools": ["add"]}).body["id"]
    body = serving.ask("POST", f"/v1/sessions/{session}/execute", {"code": ADD}).body
    assert (body["stdout"], body["tool_calls"][0]["tool"]) == ("3\n", "add")
    serving.ask("DELETE", f"/v1/sessions/{session}")


def test_calls_are_counted(serving: Server) -> None:
    serving.execute("import tools\ntools.fail()", tools=True)
    lines = serving.ask("GET", "/metrics").content.decode().splitlines()
    told = (line.rpartition(" ") for line in lines if line.startswith("belljar_tool_calls_total{"))
    counts = {name: float(value) for name, _, value in told}
    assert counts['belljar_tool_calls_total{result="failed",tool="fail"}'] >= 1
    assert counts['belljar_tool_calls_total{result="ok",tool="add"}'] >= 1


def test_a_key_has_the_tools_it_was_given(
    start: Start, command: list[str], environ: dict[str, str], config: Path, tmp_path: Path
) -> None:
    changed = {**environ, "BELLJAR_SERVER_KEYS_FILE": str(tmp_path / "keys.json")}

    def create(*arguments: str) -> str:
        made = subprocess.run([*command, "key", "create", *arguments], env=changed, capture_output=True, check=True)
        return made.stdout.decode().strip()

    none, one, all_of_them = create("none"), create("one", "--tool", "add"), create("all", "--tools")
    with start("--config", str(config), server__keys_file=tmp_path / "keys.json") as server:
        assert server.execute(ADD, key=none, tools=["add"]).code == "not_allowed"
        assert server.execute(ADD, key=one, tools=["add"]).body["stdout"] == "3\n"
        assert server.execute(ADD, key=one, tools=["pid"]).code == "not_allowed"
        seen = "import tools\nprint(tools.__all__)"
        assert server.execute(seen, key=one, tools=True).body["stdout"] == "['add', 'ToolError']\n"
        assert "pid" in server.execute(seen, key=all_of_them, tools=True).body["stdout"]
