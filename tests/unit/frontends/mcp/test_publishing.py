"""What the registry, desktop assistants and copied configuration files rely on."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from belljar import __version__
from belljar.frontends.mcp import tools

pytestmark = pytest.mark.timeout(900)  # the first time, the validator is downloaded


@pytest.fixture(scope="module")
def bundle(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The bundle that `make mcpb` builds."""
    out = tmp_path_factory.mktemp("bundle")
    command = [sys.executable, repository / "deploy" / "mcpb" / "build.py", "--out", out]
    environ = {**os.environ, "PYTHONPATH": str(repository / "src")}
    done = subprocess.run(command, capture_output=True, timeout=300, env=environ)
    assert done.returncode == 0, done.stderr.decode()
    return zipfile.ZipFile(Path(done.stdout.decode().strip()))


def test_the_bundle_starts_the_wheel_inside(bundle: zipfile.ZipFile) -> None:
    manifest = json.loads(bundle.read("manifest.json"))
    assert manifest["version"] == __version__
    arguments = manifest["server"]["mcp_config"]["args"]
    (wheel,) = [name for name in bundle.namelist() if name.endswith(".whl")]
    assert arguments[1].endswith(f"/{wheel}")
    assert manifest["server"]["entry_point"] in bundle.namelist()
    compile(bundle.read(manifest["server"]["entry_point"]), "main.py", "exec")
    with bundle.open(wheel) as opened, zipfile.ZipFile(opened) as inner:
        names = inner.namelist()
    assert "belljar/frontends/mcp/server.py" in names
    assert any(name.endswith("entry_points.txt") for name in names)


def test_the_bundle_lists_the_existing_tools(bundle: zipfile.ZipFile) -> None:
    manifest = json.loads(bundle.read("manifest.json"))
    assert [tool["name"] for tool in manifest["tools"]] == [tool.name for tool in tools.ALL]


def test_the_official_tool_accepts_the_manifest(
    bundle: zipfile.ZipFile, installed: Callable[[str], Path], tmp_path: Path
) -> None:
    bundle.extractall(tmp_path)
    place = installed("inspector")
    environ = {**os.environ, "PATH": f"{place / 'node' / 'bin'}:{os.environ['PATH']}"}
    command = [place / "node_modules" / ".bin" / "mcpb", "validate", tmp_path / "manifest.json"]
    done = subprocess.run(command, capture_output=True, timeout=120, env=environ)
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()


def test_the_registry_entry_names_this_package_and_version(repository: Path) -> None:
    entry = json.loads((repository / "server.json").read_text())
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    assert re.fullmatch(r"[a-zA-Z0-9.-]+/[a-zA-Z0-9._-]+", entry["name"])
    assert 1 <= len(entry["description"]) <= 100
    assert entry["version"] == project["version"] == __version__
    (package,) = entry["packages"]
    assert (package["registryType"], package["identifier"]) == ("pypi", project["name"])
    assert package["version"] == project["version"]
    assert package["transport"] == {"type": "stdio"}
    for argument in package["packageArguments"]:
        assert argument["type"] == "named" or "value" in argument
    assert f"mcp-name: {entry['name']}" in (repository / "README.md").read_text()


def test_every_snippet_in_the_docs_is_json_that_starts_belljar(repository: Path) -> None:
    text = (repository / "docs" / "mcp.md").read_text()
    snippets = [json.loads(found) for found in re.findall(r"```json\n(.*?)```", text, re.DOTALL)]
    assert len(snippets) >= 4
    started = [words for each in snippets for words in _commands(each)]
    assert len(started) >= 3
    for words in started:
        assert words[0] in ("uvx", "belljar", "code-sandbox-mcp")
        assert words[0] == "code-sandbox-mcp" or "mcp" in words


def test_the_options_in_the_docs_exist(repository: Path) -> None:
    text = (repository / "docs" / "mcp.md").read_text()
    done = subprocess.run(
        [sys.executable, "-m", "belljar", "mcp", "--help"], capture_output=True, timeout=60, check=True
    )
    known = set(re.findall(r"--[a-z-]+", done.stdout.decode()))
    of_others = {"--from", "--with", "--python", "--transport", "--header", "--scope", "--add-mcp", "--cli", "--method"}
    of_others |= {"--no-deps", "--host", "--port", "--tool-name", "--tool-arg"}
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)) - of_others <= known


def test_the_sdk_is_not_needed_for_anything_else() -> None:
    """Other commands must not import it."""
    code = (
        "import sys, belljar.frontends.api.server, belljar.frontends.cli.mcp, belljar.frontends.mcp.stdio\n"
        "print([name for name in sys.modules if name.partition('.')[0] in ('mcp', 'mcp_types', 'pydantic')])"
    )
    assert importlib.util.find_spec("mcp") is not None
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=True)
    assert done.stdout.decode().strip() == "[]"


def test_without_the_sdk_it_says_how_to_install_it() -> None:
    """An interpreter that cannot find the SDK, as after a plain `pip install belljar`."""
    hidden = (
        "import sys, importlib.util as u\n"
        "real = u.find_spec\n"
        "u.find_spec = lambda name, package=None: None if name == 'mcp' else real(name, package)\n"
        "from belljar.frontends.cli import main\n"
        "sys.exit(main(['mcp']))"
    )
    command = [sys.executable, "-c", hidden]
    done = subprocess.run(command, capture_output=True, timeout=60, stdin=subprocess.DEVNULL)
    assert done.returncode != 0
    assert "pip install 'belljar[mcp]'" in done.stderr.decode()


def _commands(node: Any) -> list[list[str]]:
    if not isinstance(node, dict):
        return []
    if isinstance(node.get("command"), str):
        return [[node["command"], *node.get("args", [])]]
    return [words for each in node.values() for words in _commands(each)]
