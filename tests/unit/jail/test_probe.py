"""The probe finds out which walls work and which are missing, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from belljar.jail import probe
from belljar.jail.probe import stage
from belljar.jail.probe.stage import Missing, ProbeConfig, in_child, must_fail

UID_BASE = 1_900_000_000
CGROUP_PARENT = f"belljar-probe-test-{os.getpid()}"
CONFIG = ProbeConfig(UID_BASE, f"{CGROUP_PARENT}/unit")
WAIVERS = {"uid", "landlock", "cgroup", ""}

RUN_PROBE = """
import json, sys
sys.path.insert(0, sys.argv[1])
from belljar.jail import probe
print(json.dumps(probe.run(int(sys.argv[2]), sys.argv[3])))
"""


def mounts_here() -> str:
    return Path("/proc/self/mountinfo").read_text()


def children_here() -> str:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text()


@pytest.fixture(scope="module")
def answer() -> dict[str, Any]:
    """The result of the probe, with a check that probing changes nothing."""
    before = mounts_here(), children_here()
    found = probe.run(UID_BASE, CGROUP_PARENT)
    assert (mounts_here(), children_here()) == before
    assert not list(Path("/sys/fs/cgroup").glob(f"**/{CGROUP_PARENT}"))
    return found


@pytest.mark.skipif(
    os.geteuid() != 0, reason="a plain user lacks two walls; tests/unit/frontends/cli/test_cli.py looks at that"
)
def test_every_wall_holds_on_this_machine(answer: dict[str, Any]) -> None:
    assert [row for row in answer["walls"] if row["state"] != "ok"] == []


def test_every_row_states_an_observation_and_its_meaning(answer: dict[str, Any]) -> None:
    assert len({row["name"] for row in answer["walls"]}) == len(answer["walls"]) > 20
    for row in answer["walls"]:
        assert row["seen"]
        assert row["meaning"]
        assert row["waiver"] in WAIVERS
        assert bool(row["fix"]) == (row["state"] != "ok")


def test_facts_describe_this_kernel(answer: dict[str, Any]) -> None:
    facts = answer["facts"]
    assert facts["kernel"] == os.uname().release
    assert facts["uid"] == os.geteuid()
    assert facts["memory_bytes"] > 2**20
    assert "user.max_user_namespaces" in facts["sysctls"]


def test_uids_that_are_in_use_are_refused() -> None:
    if os.geteuid() != 0:
        pytest.skip("a plain user has no uids to give")
    rows = {row["name"]: row for row in probe.run(0, CGROUP_PARENT)["walls"]}
    assert rows["uid"]["state"] == "missing"
    assert "root in /etc/passwd" in rows["uid"]["seen"]
    assert rows["uid"]["fix"] == "choose another jail.uid_base"


def test_a_machine_without_user_namespaces_is_detected(sources: Path) -> None:
    """Inside a user namespace, the maximum number of further ones can be set to 0."""
    script = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"'
    command = [sys.executable, "-c", RUN_PROBE, str(sources), str(UID_BASE), CGROUP_PARENT]
    probed = subprocess.run(
        ["unshare", "--user", "--map-root-user", "sh", "-c", script, "sh", *command],
        capture_output=True,
        timeout=60,
    )
    assert probed.returncode == 0, probed.stderr.decode()
    rows = {row["name"]: row for row in json.loads(probed.stdout)["walls"]}
    assert rows["user namespace"]["state"] == "missing"
    assert rows["user namespace"]["fix"] == "sysctl -w user.max_user_namespaces=15000"
    assert "user.max_user_namespaces" in rows["net namespace"]["fix"]
    assert rows["no_new_privs"]["state"] == "ok"
    assert rows["seccomp"]["state"] == "ok"


# ---- attempts that go wrong


def succeed(_config: ProbeConfig) -> str:
    return "all well"


def refuse(_config: ProbeConfig) -> str:
    raise PermissionError(1, "not you")


def find_a_gap(_config: ProbeConfig) -> str:
    raise Missing("there is a gap")


def break_down(_config: ProbeConfig) -> str:
    raise KeyError("a bug")


def die(_config: ProbeConfig) -> str:
    os._exit(0)


def go_on_and_succeed(_config: ProbeConfig) -> str:
    stage.go_on_in_child()
    return "from the grandchild"


@pytest.mark.parametrize(
    ("attempt", "seen", "stands"),
    [
        pytest.param(succeed, "all well", True, id="it_stands"),
        pytest.param(go_on_and_succeed, "from the grandchild", True, id="a_grandchild_reports"),
        pytest.param(refuse, "[Errno 1] not you", False, id="the_kernel_refuses"),
        pytest.param(find_a_gap, "there is a gap", False, id="it_does_not_hold"),
        pytest.param(break_down, "KeyError: 'a bug'", False, id="a_bug_is_not_a_wall"),
        pytest.param(die, "the attempt reported nothing", False, id="silence_is_not_a_wall"),
    ],
)
def test_only_an_attempt_that_succeeds_counts(attempt: Any, seen: str, stands: bool) -> None:
    assert in_child(attempt, CONFIG) == (seen, stands)


def test_an_attempt_that_hangs_is_ended_with_its_children(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def hang(_config: ProbeConfig) -> str:
        pid = os.fork()
        if pid == 0:
            stage.die_with_parent()
        else:
            (tmp_path / "pid").write_text(str(pid))
        time.sleep(600)
        return "never"

    monkeypatch.setattr(stage, "_ATTEMPT_SECONDS", 0.5)
    assert in_child(hang, CONFIG) == ("the attempt reported nothing", False)
    grandchild = Path("/proc", (tmp_path / "pid").read_text(), "stat")
    deadline = time.monotonic() + 10
    while grandchild.exists() and grandchild.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline, "the grandchild lives"
        time.sleep(0.01)


def test_a_call_that_must_fail_must_fail_for_the_right_reason() -> None:
    must_fail("opening nothing", 2, os.open, "/does/not/exist", os.O_RDONLY)
    with pytest.raises(Missing, match="opening nothing failed with ENOENT, not EPERM"):
        must_fail("opening nothing", 1, os.open, "/does/not/exist", os.O_RDONLY)
    with pytest.raises(Missing, match="asking the time was possible"):
        must_fail("asking the time", 1, time.time)


def test_a_probe_that_cannot_start_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(probe.ProbeFailed, match="exit code 1: no output"):
        probe.run(UID_BASE, CGROUP_PARENT)
