"""The command code-sandbox-mcp: existing configuration files of its users keep working."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.unit.frontends.mcp.conftest import Plug

COMMAND = [
    sys.executable,
    "-c",
    "import sys; from belljar.frontends.cli.mcp import be_code_sandbox as main; sys.exit(main())",
]


def test_it_presents_itself_as_the_original(plug: Plug) -> None:
    with plug(start=COMMAND) as wire:
        greeting = wire.greet("2025-06-18")
        assert greeting["serverInfo"]["name"] == "code-sandbox"
        assert set(greeting["capabilities"]) >= {"tools", "resources", "prompts"}
        assert greeting["instructions"].count(".") == 1
        tools = wire.ask("tools/list")["tools"]
        assert [tool["name"] for tool in tools] == ["run_python_code", "run_js_code", "run_javascript_code"]
        for tool in tools:
            assert tool["inputSchema"]["required"] == ["code"]
            assert tool["inputSchema"]["properties"]["code"]["type"] == "string"
        assert [each["uri"] for each in wire.ask("resources/list")["resources"]] == ["sandbox://environments"]
        assert wire.ask("prompts/list")["prompts"] == []
        assert wire.call("run_python_code", code="print('Hello, World!')")["content"][0]["text"] == "Hello, World!"
        assert "error" in wire.call("run_python_code", code="print(nope)")["content"][0]["text"].lower()


def test_its_environments_have_an_image_and_libraries(plug: Plug) -> None:
    with plug(start=COMMAND) as wire:
        wire.greet()
        (content,) = wire.ask("resources/read", {"uri": "sandbox://environments"})["contents"]
        assert content["mimeType"] == "text/plain"
        for each in json.loads(content["text"]).values():
            assert {"image", "installed_libraries"} <= set(each)


def test_it_passes_named_variables_through(plug: Plug) -> None:
    with plug("--pass-through-env", "TOKEN,ABSENT", start=COMMAND, TOKEN="t", OTHER="o") as wire:
        wire.greet()
        code = "import os; print(os.environ.get('TOKEN'), os.environ.get('OTHER'), os.environ.get('ABSENT'))"
        assert wire.call("run_python_code", code=code)["content"][0]["text"] == "t None None"


@pytest.mark.parametrize(
    ("options", "variables", "words"),
    [
        pytest.param(
            ["--python-image", "lab/python:1"], {"BACKEND": "nothing"}, "container.engine", id="unknown_engine"
        ),
        pytest.param(
            [], {"CONTAINER_IMAGE": "lab/x", "CONTAINER_LANGUAGE": "cobol"}, "CONTAINER_LANGUAGE", id="language"
        ),
        pytest.param(["--nope"], {}, "unrecognized arguments", id="unknown_flag"),
    ],
)
def test_errors_are_reported_on_standard_error_only(
    environ: dict[str, str], options: list[str], variables: dict[str, str], words: str
) -> None:
    done = subprocess.run(
        [*COMMAND, *options],
        env={**environ, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
    )
    assert done.returncode != 0
    assert done.stdout == b""
    assert words in done.stderr.decode()
