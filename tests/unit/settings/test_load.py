"""Settings from files and variables, read by the real command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import belljar
from belljar.contract.errors import InvalidSettings
from belljar.settings import load, names

REPOSITORY = Path(__file__).resolve().parents[3]


def show(**variables: str) -> subprocess.CompletedProcess[str]:
    """Run `belljar config show` with these environment variables and no other settings."""
    passed = {name: value for name, value in os.environ.items() if not name.startswith("BELLJAR_")}
    return subprocess.run(
        [sys.executable, "-m", "belljar", "config", "show", "--json"],
        env={**passed, "PYTHONPATH": str(Path(belljar.__file__).parents[1]), **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize(
    ("variable", "message"),
    [
        pytest.param("BELLJAR_POOL_MAX_RUNING", "BELLJAR_POOL_MAX_RUNNING", id="a_letter_is_missing"),
        pytest.param("BELLJAR_POL_MAX_RUNNING", "BELLJAR_POOL_MAX_RUNNING", id="in_its_section"),
        pytest.param("BELLJAR_DEFAULT_LIMITS_WALL", "BELLJAR_DEFAULT_LIMITS_WALL_SECONDS", id="without_its_unit"),
        pytest.param("BELLJAR_STATE_DRI", "BELLJAR_STATE_DIR", id="unknown_section"),
        pytest.param("BELLJAR_PORT", "BELLJAR_SERVER_PORT", id="without_its_section"),
        pytest.param("BELLJAR_ENVIRONMENTS_DEFAULT_PACKAGES", "settings file", id="one_of_many_by_name"),
        pytest.param("BELLJAR_TOOLS_SERVERS_MINE_URL", "settings file", id="a_tool_server"),
        pytest.param("BELLJAR_POOL_CELL_SECONDS", "is now called BELLJAR_POOL_JAIL_SECONDS", id="renamed"),
    ],
)
def test_an_unknown_setting_is_refused(variable: str, message: str) -> None:
    ended = show(**{variable: "1"})
    assert ended.returncode != 0
    assert ended.stdout == ""
    assert variable in ended.stderr
    assert message in ended.stderr


@pytest.mark.parametrize("is_flag", [False, True], ids=["in_a_file", "as_a_flag"])
def test_a_setting_by_its_old_name_is_refused_with_the_new_one(tmp_path: Path, is_flag: bool) -> None:
    file = tmp_path / "belljar.toml"
    file.write_text("" if is_flag else "[pool]\ncell_seconds = 1\n")
    with pytest.raises(InvalidSettings, match=r"'pool\.cell_seconds' is now called 'pool\.jail_seconds'"):
        load(file, environ={}, flags={"pool.cell_seconds": 1} if is_flag else {})


def test_every_setting_can_be_a_variable() -> None:
    shown: dict[str, dict[str, Any]] = json.loads(show().stdout)
    given = {}
    for name in names():
        value = shown[name]["value"]
        given["BELLJAR_" + name.upper().replace(".", "_")] = ",".join(value) if isinstance(value, list) else str(value)
    ended = show(**given)
    assert ended.returncode == 0, ended.stderr
    assert {each["source"] for name, each in json.loads(ended.stdout).items() if name in names()} == {"environment"}


@pytest.mark.parametrize(
    "variables",
    [
        pytest.param({"BELLJAR_URL": "http://127.0.0.1:8000", "BELLJAR_API_KEY": "bj_mine"}, id="of_the_client"),
        pytest.param({"BELLJAR_IMAGE": "belljar:full", "BELLJAR_MEMORY": "8g"}, id="of_compose"),
        pytest.param({"BELLJAR_TEST_ALL_LANGUAGES": "1"}, id="of_the_tests"),
        pytest.param(
            {
                "BELLJAR_SERVICE_HOST": "10.0.0.7",
                "BELLJAR_SERVICE_PORT": "8000",
                "BELLJAR_SERVICE_PORT_HTTP": "8000",
                "BELLJAR_PORT": "tcp://10.0.0.7:8000",
                "BELLJAR_PORT_8000_TCP": "tcp://10.0.0.7:8000",
                "BELLJAR_PORT_8000_TCP_ADDR": "10.0.0.7",
            },
            id="of_kubernetes",
        ),
    ],
)
def test_unrelated_variables_are_ignored(variables: dict[str, str]) -> None:
    ended = show(**variables)
    assert ended.returncode == 0, ended.stderr
    assert "environment" not in {each["source"] for each in json.loads(ended.stdout).values()}


def test_variables_set_by_compose_are_read() -> None:
    compose = yaml.safe_load((REPOSITORY / "deploy" / "docker" / "compose.yaml").read_text())
    given = dict(compose["services"]["belljar"]["environment"])
    ended = show(**given)
    assert ended.returncode == 0, ended.stderr
    from_there = [name for name, each in json.loads(ended.stdout).items() if each["source"] == "environment"]
    assert len(from_there) == len(given)


@pytest.mark.parametrize("runners", [-1, 33])
def test_too_many_runners_are_refused(runners: int) -> None:
    with pytest.raises(InvalidSettings, match=r"server.runners is .* 0 to 32"):
        load(environ={"BELLJAR_SERVER_RUNNERS": str(runners)})
