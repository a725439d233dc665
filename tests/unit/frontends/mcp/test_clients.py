"""Real clients, each in its own virtual environment, over both transports; all must see the same."""

from __future__ import annotations

import base64
import io
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from PIL import Image

if TYPE_CHECKING:
    from tests.unit.frontends.mcp.conftest import Site

HERE = Path(__file__).parent
FIGURE = "import matplotlib.pyplot as plt\nplt.plot([1, 2, 3])\nplt.show()"
pytestmark = pytest.mark.timeout(900)  # the first time, the clients are downloaded


@pytest.mark.parametrize("transport", ["stdio", "http"])
@pytest.mark.parametrize(
    ("client", "mode"),
    [
        pytest.param("sdk2", "auto", id="sdk_2_newest_revision"),
        pytest.param("sdk2", "legacy", id="sdk_2_with_handshake"),
        pytest.param("sdk1", "", id="sdk_1"),
        pytest.param("fastmcp_client", "", id="fastmcp"),
    ],
)
def test_a_real_client_gets_everything(
    site: Site,
    installed: Callable[[str], Path],
    command: list[str],
    environ: dict[str, str],
    client: str,
    mode: str,
    transport: str,
) -> None:
    target: dict[str, Any] = {"url": site.mcp_url} if transport == "http" else {"command": command, "env": environ}
    if mode:
        target["mode"] = mode
    python = installed(client) / "python"
    done = subprocess.run(
        [python, HERE / "clients" / f"{client}.py", json.dumps(target), FIGURE], capture_output=True, timeout=120
    )
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    got = json.loads(done.stdout.splitlines()[-1])
    assert got["tools"][0] == "run_code"
    assert len(got["tools"]) == 15
    assert (got["text"], got["structured"]) == ("42", "42\n")
    (picture,) = got["image"]
    with Image.open(io.BytesIO(base64.b64decode(picture))) as image:
        image.load()
        assert image.width > 100
    assert got["bad_is_error"] is True
    assert got["cell"] == "42"
    assert got["many"] == [str(number) for number in range(10)]
    assert "half" in got["progress"]
    assert "numpy" in json.loads(got["resource"])["python"]["installed_libraries"]
    assert got["prompts"] == ["code_execution_prompt"]


class TestInspector:
    """The npm MCP Inspector in its command-line mode."""

    @pytest.fixture(params=["stdio", "http"])
    def inspect(
        self,
        request: pytest.FixtureRequest,
        installed: Callable[[str], Path],
        command: list[str],
        environ: dict[str, str],
    ) -> Callable[..., Any]:
        place = installed("inspector")
        if request.param == "http":
            target = [request.getfixturevalue("site").mcp_url, "--transport", "http"]
        else:
            # It passes on only those environment variables that are named.
            own = [f"{name}={value}" for name, value in environ.items() if name.startswith("BELLJAR_")]
            target = [word for each in own for word in ("-e", each)] + command

        def inspect(*arguments: str) -> Any:
            words = [place / "node_modules" / ".bin" / "mcp-inspector", "--cli", *target, *arguments]
            path = f"{place / 'node' / 'bin'}:{os.environ['PATH']}"
            done = subprocess.run(words, env={**environ, "PATH": path}, capture_output=True, timeout=120)
            assert done.returncode == 0, done.stderr.decode()[-2000:]
            return json.loads(done.stdout)

        return inspect

    def test_it_lists_the_tools(self, inspect: Callable[..., Any]) -> None:
        assert inspect("--method", "tools/list")["tools"][0]["name"] == "run_code"

    def test_it_calls_a_tool(self, inspect: Callable[..., Any]) -> None:
        asked = ("--method", "tools/call", "--tool-name", "run_code", "--tool-arg", "code=print(6*7)")
        result = inspect(*asked)
        assert result["content"] == [{"type": "text", "text": "42"}]
        assert result["structuredContent"]["status"] == "ok"
