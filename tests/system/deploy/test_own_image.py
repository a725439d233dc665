"""Belljar in a container: the image is built, and programs run in it with the minimal flags of each mode."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from container_engines import Engine

REPOSITORY = Path(__file__).resolve().parents[3]
SHUT = (
    *("run", "--rm", "--network=none", "--read-only", "--tmpfs=/tmp", "--cap-drop=ALL"),
    "--security-opt=no-new-privileges",
)
FILTER = f"--security-opt=seccomp={REPOSITORY}/deploy/docker/seccomp.json"
AS_USER = ("--tmpfs=/run/belljar:uid=10001,mode=0700", "--env=BELLJAR_JAIL_WITHOUT_WALLS=uid,cgroup")
AS_ROOT = (
    *("--user=0", "--tmpfs=/run/belljar:mode=0700"),
    *(f"--cap-add={name}" for name in ("SYS_ADMIN", "SETUID", "SETGID", "KILL")),
)
HELLO = ("run", "-c", "import os; print('hello from', os.getpid())")
FORKS = """
import os, signal
count = 0
try:
    while count < 1000:
        if os.fork() == 0:
            signal.pause()
        count += 1
except OSError:
    print(count, flush=True)
"""
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}},
}


@pytest.fixture(scope="module")
def own_image(docker: Engine, plain_image: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Built from the real Dockerfile without network access; base image and wheels are local."""
    context = tmp_path_factory.mktemp("context")
    for name in ("pyproject.toml", "README.md", "LICENSE", ".dockerignore"):
        shutil.copy(REPOSITORY / name, context)
    shutil.copytree(REPOSITORY / "src", context / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(REPOSITORY / "deploy" / "docker", context / "deploy" / "docker")
    wheels = context / "deploy" / "docker" / "wheels"
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--wheel-dir", str(wheels)]
    subprocess.run([*command, f"{REPOSITORY}[container,mcp,tools]"], check=True, capture_output=True)
    docker.command(
        *("build", "--quiet", "--network=none", f"--build-arg=BASE={plain_image}", "--build-arg=GUEST=bare"),
        *(f"--file={context}/deploy/docker/Dockerfile", "--tag=belljar-test-own:1", str(context)),
    )
    return "belljar-test-own:1"


@pytest.fixture(scope="module")
def run_image(docker: Engine, own_image: str) -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(
        *options: str, arguments: tuple[str, ...] = HELLO, stdin: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        command = ["docker", f"--host=unix://{docker.socket}", *SHUT, *options, own_image, *arguments]
        environ = {"PATH": "/usr/bin:/bin"}
        return subprocess.run(command, input=stdin, capture_output=True, text=True, check=False, env=environ)

    return run


@pytest.mark.parametrize(
    "options",
    [
        pytest.param((*AS_USER, FILTER, "--security-opt=systempaths=unconfined"), id="plain_user"),
        pytest.param((*AS_ROOT, FILTER, "--env=BELLJAR_JAIL_WITHOUT_WALLS=cgroup"), id="root_without_cgroups"),
        pytest.param(
            (*AS_ROOT, FILTER, "--volume=/sys/fs/cgroup:/sys/fs/cgroup:rw", "--cgroupns=host"),
            id="root_with_every_wall",
        ),
    ],
)
def test_programs_run_with_minimal_flags(
    run_image: Callable[..., subprocess.CompletedProcess[str]], options: tuple[str, ...]
) -> None:
    ended = run_image(*options)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("hello from ")


@pytest.mark.parametrize(
    "options",
    [
        pytest.param((*AS_USER, FILTER, "--security-opt=systempaths=unconfined"), id="plain_user"),
        pytest.param((*AS_ROOT, FILTER, "--env=BELLJAR_JAIL_WITHOUT_WALLS=cgroup"), id="root_without_cgroups"),
    ],
)
def test_without_cgroups_the_process_limit_still_applies(
    run_image: Callable[..., subprocess.CompletedProcess[str]], options: tuple[str, ...]
) -> None:
    ended = run_image(*options, arguments=("run", "--processes", "20", "-c", FORKS))
    assert (ended.stdout, ended.stderr) == ("19\n", "")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        pytest.param(AS_USER, "unshare", id="user_under_the_usual_filter"),
        pytest.param((*AS_USER, FILTER), "mount proc", id="user_with_masked_proc"),
        pytest.param(
            (*AS_ROOT, "--env=BELLJAR_JAIL_WITHOUT_WALLS=cgroup"), "pivot_root", id="root_under_the_usual_filter"
        ),
        pytest.param((*AS_ROOT, FILTER), "wall 'cgroup' is missing", id="root_with_a_wall_not_given_up"),
    ],
)
def test_with_fewer_flags_it_refuses_with_a_reason(
    run_image: Callable[..., subprocess.CompletedProcess[str]], options: tuple[str, ...], reason: str
) -> None:
    ended = run_image(*options)
    assert ended.returncode != 0
    assert reason in ended.stderr
    assert "hello" not in ended.stdout


def test_the_doctor_is_correct_inside(run_image: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    options = (*AS_USER, FILTER, "--security-opt=systempaths=unconfined")
    ended = run_image(*options, arguments=("doctor", "--json"))
    walls = {row["name"]: row["state"] for row in json.loads(ended.stdout)["walls"]}
    assert {walls[name] for name in ("uid", "cgroup") if name in walls} <= {"given up"}
    assert "ok" in walls.values()


def test_it_speaks_mcp(run_image: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    options = (*AS_USER, FILTER, "--security-opt=systempaths=unconfined", "--interactive")
    ended = run_image(*options, arguments=("mcp",), stdin=json.dumps(INITIALIZE) + "\n")
    assert json.loads(ended.stdout)["result"]["serverInfo"]["name"] == "belljar", ended.stderr


def test_the_web_tools_can_be_imported(
    run_image: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    ended = run_image("--entrypoint=python3", arguments=("-c", "import httpx, pypdf; print('here')"))
    assert ended.stdout == "here\n", ended.stderr


def test_the_server_refuses_the_network_without_a_key(
    run_image: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    ended = run_image(*AS_USER, FILTER, "--security-opt=systempaths=unconfined", arguments=("serve",))
    assert ended.returncode != 0
    assert "key" in ended.stderr
