"""A reused jail is pristine: after thousands of random system calls, its namespaces look like those of a new one.

AS_NEW_SECONDS sets how long this runs (30 by default); AS_NEW_SEED repeats a failed run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import belljar
from belljar.contract.execution import Output
from belljar.jail import policy, seccomp
from belljar.settings import Settings

HERE = Path(__file__).parent / "as_new"
SECONDS = float(os.environ.get("AS_NEW_SECONDS", "30"))
SEED = int(os.environ.get("AS_NEW_SEED", random.SystemRandom().randrange(1 << 32)))
SEQUENCES = (1, 3, 60)  # per run; delayed effects in the kernel only show in the next program if a run is short
DELAY_SECONDS = (0.1, 0.1, 0.1, 1.2)  # how long to wait for such effects; multicast groups are reported within a second
_RANGES_APART = 48  # one of the uid ranges reserved by conftest.py that no other sandbox uses
KEPT_MIN = 5  # otherwise too little was compared
WAIT = "import signal; print('here', flush=True); signal.pause()"


class LoneJail:
    """The only jail of a narrow sandbox, as seen from the host."""

    def __init__(self, settings: Settings, host: Any) -> None:
        self._uids = settings.jail.uid_base, settings.jail.uid_base + policy.UIDS_PER_INSTANCE
        self._host = host
        self._cgroup_parent = settings.jail.cgroup_parent

    def find(self) -> int | None:
        """Return the pid of its jail_init, or None if the jail does not exist."""
        found = [
            each.pid
            for each in self._host.guest_processes()
            if each.uid == self._uids[0] and each.command.endswith("sleep infinity")
        ]
        assert len(found) <= 1, found
        return found[0] if found else None

    def look(self) -> dict[str, str]:
        """Return everything that the host can read about the jail, by name."""
        pid = self.find()
        assert pid is not None
        command = [sys.executable, "-I", str(HERE / "look.py"), str(pid), *map(str, self._uids)]
        looked = subprocess.run(command, capture_output=True, text=True, check=False)
        assert looked.returncode == 0, looked.stderr
        return {**json.loads(looked.stdout), **self._cgroup_files()}

    def _cgroup_files(self) -> dict[str, str]:
        """Return limits and settings of its cgroups, without counters, which the host subtracts or resets."""
        names = ("cpu.shares", "cpu.cfs_quota_us", "cpu.weight", "cpu.max", "pids.max", "memory.swappiness")
        names += (
            "memory.limit_in_bytes",
            "memory.max",
            "memory.oom.group",
            "memory.oom_control",
            "cgroup.procs",
            "tasks",
        )
        paths = sorted(
            path for path in self._host.cgroup_directories() if self._cgroup_parent in path and "jail-" in path
        )
        files = [Path(path) / name for path in paths for name in names]
        return {
            str(file).split(self._cgroup_parent)[0] + file.name: _without_kills(file.read_text())
            for file in files
            if file.exists()
        }


def _without_kills(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.startswith("oom_kill "))


@pytest.fixture
def own_settings(settings: Settings) -> Settings:
    """Settings for one program at a time, no ready guests, and separate uids by which to find its processes."""
    uid_base = settings.jail.uid_base + _RANGES_APART * policy.UIDS_PER_INSTANCE
    jail = dataclasses.replace(settings.jail, uid_base=uid_base, cgroup_parent=f"{settings.jail.cgroup_parent}/as-new")
    pool = dataclasses.replace(settings.pool, max_running=1, ready_guests=0)
    return dataclasses.replace(settings, jail=jail, pool=pool)


@pytest.fixture
def lone_box(own_settings: Settings) -> Iterator[belljar.Sandbox]:
    with belljar.Sandbox(settings=own_settings) as opened:
        yield opened


@pytest.fixture
def jail(own_settings: Settings, host: Any) -> LoneJail:
    return LoneJail(own_settings, host)


def look_at_a_new_one(box: belljar.Sandbox, jail: LoneJail) -> dict[str, str]:
    """Look at a jail in which a first program has just started and does nothing."""
    before = jail.find()
    with contextlib.closing(box.stream(WAIT)) as events:
        assert any(isinstance(event, Output) and "here" in event.text for event in events)
        assert jail.find() != before
        return {name: text for name, text in jail.look().items() if not name.endswith(("procs", "tasks"))}


def differences(fresh: dict[str, str], used: dict[str, str]) -> dict[str, tuple[str | None, str | None]]:
    """Return by name what differs: the content in a new jail, and in the used one."""
    used = {name: text for name, text in used.items() if not name.endswith(("procs", "tasks")) or text}
    names = {name for name in (*fresh, *used) if fresh.get(name) != used.get(name)}
    return {name: (fresh.get(name), used.get(name)) for name in sorted(names)}


@pytest.fixture
def calls() -> dict[str, bytes]:
    numbers = {name: number for name, number in seccomp.SYSCALLS[os.uname().machine].items() if name != "vfork"}
    return {"calls.json": json.dumps(numbers).encode()}


JOIN = """
import ctypes, os, socket, sys
assert ctypes.CDLL(None).setns(os.pidfd_open(int(sys.argv[1])), 0x40000000) == 0
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as member:
    member.setsockopt(0, 35, bytes((224, 0, 0, 251, 127, 0, 0, 1)))
"""


def test_traces_of_a_multicast_group_would_be_found(lone_box: belljar.Sandbox, jail: LoneJail, host: Any) -> None:
    """The host joins the group, because no seccomp filter stops it; the report follows after the socket is closed."""
    fresh = look_at_a_new_one(lone_box, jail)
    assert lone_box.run("pass").ok
    assert not differences(fresh, jail.look())
    subprocess.run([sys.executable, "-I", "-c", JOIN, str(jail.find())], check=True)
    host.wait_until(lambda: differences(fresh, jail.look()), "the report shows")


@pytest.mark.timeout(120 + 4 * SECONDS)
def test_a_reused_jail_is_pristine_after_random_calls(
    lone_box: belljar.Sandbox, jail: LoneJail, calls: dict[str, bytes]
) -> None:
    print(f"AS_NEW_SEED={SEED}")
    code = (HERE / "random_calls.py").read_text()
    fresh = look_at_a_new_one(lone_box, jail)
    assert not differences(fresh, look_at_a_new_one(lone_box, jail)), "two new jails differ"
    seeds, deadline, kept, sequences = random.Random(SEED), time.monotonic() + SECONDS, 0, 0
    while time.monotonic() < deadline or kept < KEPT_MIN:
        assert lone_box.run("pass").ok
        before = jail.find()
        args = [str(seeds.randrange(1 << 32)), str(seeds.choice(SEQUENCES)), "calls.json"]
        outcome = lone_box.run(code, args=args, files=calls, limits={"wall_seconds": 60, "cpu_seconds": 60})
        sequences += int(args[1])
        if before is None or jail.find() != before:
            continue  # the jail was destroyed, so the next program gets a new one
        time.sleep(DELAY_SECONDS[kept % len(DELAY_SECONDS)])  # the next program would see delayed effects
        kept += 1
        assert jail.find() == before
        assert not differences(fresh, jail.look()), (args, outcome.stdout, outcome.stderr[-500:])
    print(f"{sequences} sequences of calls; {kept} times the jail was kept")
