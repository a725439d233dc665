"""Cgroups: real ones where the machine has version 1; a fake kernel for version 2, mixtures and none.

Only the kernel is faked: its tables under /proc/self and the files of a cgroup.
"""

from __future__ import annotations

import contextlib
import io
import os
import secrets
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from belljar.jail import cgroups, instance
from belljar.jail.cgroups import Cgroups, CgroupsUnavailable, Hierarchy, JailCgroup, find_hierarchies, remove_trees

MIB = 1024 * 1024
CONTROLLERS = {"memory", "pids", "cpuacct"}


# ---- real cgroups


@pytest.fixture
def ours() -> Iterator[Cgroups]:
    made = Cgroups(find_hierarchies(), unique_name())
    made.open()
    yield made
    made.close()
    assert not any(Path(directory).exists() for _, directory in made.directories)


@pytest.fixture
def jail(ours: Cgroups) -> Iterator[JailCgroup]:
    made = ours.jail(0)
    yield made
    made.close()


def unique_name() -> str:
    return f"belljar-test-{secrets.token_hex(4)}/instance"


def join(jail: JailCgroup, code: str) -> subprocess.Popen[bytes]:
    """Start a process that joins the jail's cgroups, as a guest does, and then runs `code`."""
    enter = f"import os\nfor file in {jail.join_files}: os.write(file, b'0')\n"
    return subprocess.Popen([sys.executable, "-c", enter + code], pass_fds=jail.join_files, stderr=subprocess.DEVNULL)


def wait_until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_every_controller_is_found_once() -> None:
    held = [name for hierarchy in find_hierarchies() for name in hierarchy.controllers]
    assert sorted(name for name in held if name != "cpu") == sorted(CONTROLLERS)


def test_a_cgroup_is_empty_before_and_after_a_process_joins(jail: JailCgroup) -> None:
    jail.limit(64 * MIB, 8)
    assert jail.is_empty()
    with join(jail, "import signal; signal.pause()") as process:
        wait_until(lambda: not jail.is_empty())
        process.kill()
    wait_until(jail.is_empty)


def test_a_cgroup_with_a_zombie_is_not_empty(jail: JailCgroup) -> None:
    process = join(jail, "pass")
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert not jail.is_empty()
    process.wait()
    wait_until(jail.is_empty)


def test_memory_over_the_limit_is_counted_as_a_kill_and_reported(jail: JailCgroup) -> None:
    jail.limit(48 * MIB, 8)
    jail.begin()
    with join(jail, "kept = bytearray(b'x') * (200 << 20)") as process:
        assert process.wait(60) == -signal.SIGKILL
    assert jail.oom_kills() == 1 or (
        jail.oom_event is None and jail.oom_kills() == 2
    )  # version 2: one is counted twice
    assert 40 * MIB <= jail.memory_peak_bytes() <= 48 * MIB
    if jail.oom_event is not None:  # version 1 reports it, because it kills only one of several processes
        assert select.select([jail.oom_event], [], [], 20)[0]


def test_a_child_ended_for_memory_is_counted_while_its_parent_lives(jail: JailCgroup) -> None:
    jail.limit(48 * MIB, 8)
    jail.begin()
    code = "if os.fork() == 0: kept = bytearray(b'x') * (200 << 20)\nos.wait()\nimport signal; signal.pause()"
    with join(jail, code) as process:
        wait_until(lambda: jail.oom_kills() > 0)
        assert jail.oom_kills() == 1 or jail.oom_event is None  # version 2 kills all processes
        if jail.oom_event is not None:
            assert process.poll() is None
        process.kill()


def test_counters_are_reset(jail: JailCgroup) -> None:
    jail.limit(48 * MIB, 8)
    jail.begin()
    with join(jail, "kept = bytearray(b'x') * (200 << 20)"):
        pass
    wait_until(jail.is_empty)
    jail.begin()
    assert jail.oom_kills() == 0
    assert jail.cpu_seconds() < 0.01
    assert jail.memory_peak_bytes() < 40 * MIB or not jail.is_pristine()  # without a reset it is not reused


@pytest.mark.parametrize("first", [32, 256], ids=["raised", "lowered"])
def test_limits_can_be_changed_in_both_directions(jail: JailCgroup, first: int) -> None:
    for memory_mib in (first, 96, first, 48):
        jail.limit(memory_mib * MIB, 8)
        jail.begin()
        with join(jail, f"kept = bytearray(b'x') * {(memory_mib + 32) * MIB}") as process:
            assert process.wait(60) == -signal.SIGKILL
        with join(jail, "kept = bytearray(b'x') * (8 << 20)") as process:
            assert process.wait(60) == 0


def test_processes_and_threads_are_limited_together(jail: JailCgroup) -> None:
    jail.limit(256 * MIB, 10)
    code = """
import threading
made = 0
try:
    while made < 100:
        if made % 2:
            threading.Thread(target=threading.Event().wait, daemon=True).start()
        elif os.fork() == 0:
            threading.Event().wait()
        made += 1
except (OSError, RuntimeError):
    os._exit(made)
"""
    with join(jail, code) as process:
        assert process.wait(60) == 9
        kill_all(jail)


def test_cpu_of_all_processes_is_counted(jail: JailCgroup) -> None:
    jail.limit(256 * MIB, 10)
    jail.begin()
    code = "os.fork(); import time; end = time.process_time() + 0.3\nwhile time.process_time() < end: pass"
    with join(jail, code) as process:
        assert process.wait(60) == 0
    wait_until(lambda: jail.cpu_seconds() >= 0.6)


def test_a_closed_cgroup_leaves_no_descriptor(ours: Cgroups) -> None:
    jail = ours.jail(1)
    jail.limit(64 * MIB, 4)
    jail.begin()
    assert open_below(ours)
    jail.close()
    assert open_below(ours) == []


def test_closing_kills_remaining_processes_and_removes_everything(ours: Cgroups) -> None:
    jail = ours.jail(2)
    process = join(jail, "os.fork(); import signal; signal.pause()")
    wait_until(lambda: not jail.is_empty())
    jail.close()
    ours.close()
    assert process.wait(20) == -signal.SIGKILL
    assert not any(Path(directory).exists() for _, directory in ours.directories)


def test_cgroups_of_a_dead_instance_are_removed_by_the_next(tmp_path: Path) -> None:
    crashed = """
import os, subprocess, sys
from pathlib import Path
from belljar.jail import instance
from belljar.jail.cgroups import Cgroups, find_hierarchies
reserved = instance.reserve(Path(sys.argv[1]), 3_000_000_000)
groups = Cgroups(find_hierarchies(), sys.argv[2])
reserved.note([directory for _, directory in groups.directories])
groups.open()
jail = groups.jail(0)
orphan = f"import os, signal\\nfor file in {jail.join_files}: os.write(file, b'0')\\nsignal.pause()"
subprocess.Popen([sys.executable, "-c", orphan], pass_fds=jail.join_files)
while jail.is_empty(): pass
os.kill(os.getpid(), 9)
"""
    name = unique_name()
    left = [Path(hierarchy.path) / name for hierarchy in find_hierarchies()]
    subprocess.run(
        [sys.executable, "-c", crashed, str(tmp_path), name], check=False, env={"PYTHONPATH": os.pathsep.join(sys.path)}
    )
    assert all(path.is_dir() for path in left)
    reserved = instance.reserve(tmp_path, 3_000_000_000)
    try:
        assert not any(path.exists() for path in left)
    finally:
        reserved.close()
    for path in left:
        path.parent.rmdir()


def test_two_instances_never_share_anything(tmp_path: Path) -> None:
    first, second = instance.reserve(tmp_path / "a", 3_000_000_000), instance.reserve(tmp_path / "b", 3_000_000_000)
    third = instance.reserve(tmp_path / "a", 3_000_000_000)
    try:
        assert len({each.uid_base for each in (first, second, third)}) == 3
        assert len({each.name for each in (first, second, third)}) == 3
    finally:
        for each in (first, second, third):
            each.close()


@pytest.mark.parametrize(
    "note",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"{", id="cut_short"),
        pytest.param(b'{"cgroups": ["/no/such"]}', id="names_what_is_gone"),
        pytest.param(b"\xff" * 5000, id="not_text"),
    ],
)
def test_a_damaged_record_of_an_earlier_instance_does_no_harm(tmp_path: Path, note: bytes) -> None:
    (tmp_path / "slot-0.lock").write_bytes(note)
    instance.reserve(tmp_path, 3_000_000_000).close()


def open_below(ours: Cgroups) -> list[str]:
    """Return the cgroup files that this process has open."""
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the descriptor of the listing, or closed meanwhile
            found.append(str(descriptor.readlink()))
    return [path for path in found for _, directory in ours.directories if path.startswith(f"{directory}/")]


def kill_all(jail: JailCgroup) -> None:
    """Kill all processes in the jail, whose path is found through its first join file."""
    procs = Path(os.readlink(f"/proc/self/fd/{jail.join_files[0]}"))
    while not jail.is_empty():
        for pid in procs.read_text().split():
            try:
                os.kill(int(pid), signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.01)


# ---- a faked kernel


class Kernel:
    """A fake of the kernel's tables; its cgroup file systems are ordinary directories."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.mounts: list[str] = ["22 1 254:0 / / rw,relatime - ext4 /dev/vda rw"]
        self.own: list[str] = []
        monkeypatch.setattr(cgroups, "open", self._open, raising=False)

    def _open(self, path: Any, *arguments: Any, **named: Any) -> Any:
        if path == "/proc/self/mountinfo":
            return io.StringIO("".join(f"{line}\n" for line in self.mounts))
        if path == "/proc/self/cgroup":
            return io.StringIO("".join(f"{line}\n" for line in self.own))
        return open(path, *arguments, **named)

    def mount_version_1(self, options: str, inner: str = "/", mount_root: str = "/") -> Path:
        """Add a hierarchy with these controllers, in which this process's cgroup is `inner`."""
        place = self.root / options.replace(",", "_")
        number = len(self.own) + 1
        self.mounts.append(f"{30 + number} 22 0:{number} {mount_root} {place} rw shared:9 - cgroup cgroup rw,{options}")
        self.own.append(f"{number}:{options}:{inner}")
        place.mkdir()
        return place

    def mount_version_2(self, controllers: str, inner: str = "/", mount_root: str = "/") -> Path:
        """Add the unified hierarchy, in which this process's cgroup has these controllers."""
        place = self.root / "unified"
        self.mounts.append(f"40 22 0:40 {mount_root} {place} rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate")
        self.own.append(f"0::{inner}")
        own = place / os.path.relpath(inner, mount_root if inner.startswith(mount_root) else inner)
        own.mkdir(parents=True, exist_ok=True)
        (own / "cgroup.controllers").write_text(controllers + "\n")
        (own / "cgroup.subtree_control").write_text("")
        (own / "cgroup.procs").write_text("")
        return own


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    return Kernel(tmp_path, monkeypatch)


def found() -> dict[str, tuple[int, str]]:
    """Return version and path of each controller."""
    return {name: (each.version, each.path) for each in find_hierarchies() for name in each.controllers}


def test_pure_version_1(kernel: Kernel) -> None:
    places = {name: kernel.mount_version_1(name, inner="/") for name in ("memory", "pids", "cpuset", "freezer")}
    accounting = kernel.mount_version_1("cpu,cpuacct")
    assert found() == {
        "memory": (1, str(places["memory"])),
        "pids": (1, str(places["pids"])),
        "cpuacct": (1, str(accounting)),
    }


def test_a_separate_cpu_controller_is_joined(kernel: Kernel) -> None:
    for name in CONTROLLERS:
        kernel.mount_version_1(name)
    place = kernel.mount_version_1("cpu", inner="/")
    assert found()["cpu"] == (1, str(place))


def test_without_permission_for_a_cpu_cgroup_the_others_are_created(tmp_path: Path) -> None:
    (tmp_path / "cpu").write_text("a file, where nothing can be made")
    (tmp_path / "memory").mkdir()
    places = [Hierarchy(1, str(tmp_path / name), (name,)) for name in ("cpu", "memory")]
    groups = Cgroups(places, "belljar/instance")
    groups.open()
    assert [path for _, path in groups.directories] == [f"{tmp_path}/memory/belljar/instance"]


def test_pure_version_2(kernel: Kernel) -> None:
    own = kernel.mount_version_2("cpuset cpu io memory pids", inner="/system.slice/belljar.service")
    assert found() == {name: (2, str(own)) for name in CONTROLLERS}


def test_mixed_as_on_a_hybrid_host(kernel: Kernel) -> None:
    memory = kernel.mount_version_1("memory", inner="/user.slice")
    (memory / "user.slice").mkdir()
    pids = kernel.mount_version_1("pids")
    own = kernel.mount_version_2("cpu hugetlb", inner="/user.slice")
    assert found() == {"memory": (1, str(memory / "user.slice")), "pids": (1, str(pids)), "cpuacct": (2, str(own))}


def test_a_controller_of_version_1_is_not_looked_for_in_version_2(kernel: Kernel) -> None:
    kernel.mount_version_2("hugetlb")
    for name in ("memory", "pids", "cpuacct"):
        kernel.mount_version_1(name)
    assert {version for version, _ in found().values()} == {1}


def test_in_a_container_the_mount_shows_only_our_part(kernel: Kernel) -> None:
    place = kernel.mount_version_1("memory", inner="/docker/abc/inner", mount_root="/docker/abc")
    kernel.mount_version_1("pids", inner="/docker/abc", mount_root="/docker/abc")
    kernel.mount_version_1("cpuacct", inner="/elsewhere", mount_root="/docker/abc")
    seen = found()
    assert seen["memory"] == (1, str(place / "inner"))
    assert seen["pids"] == (1, str(kernel.root / "pids"))
    assert seen["cpuacct"] == (1, str(kernel.root / "cpuacct"))


def test_a_name_with_the_same_prefix_is_another_cgroup(kernel: Kernel) -> None:
    kernel.mount_version_1("memory", inner="/docker/abcdef", mount_root="/docker/abc")
    kernel.mount_version_1("pids")
    kernel.mount_version_1("cpuacct")
    version, path = found()["memory"]
    assert (version, Path(path)) == (1, kernel.root / "memory")


@pytest.mark.parametrize(
    ("set_up", "missing"),
    [
        pytest.param(lambda kernel: None, "cpuacct, memory, pids", id="nothing_mounted"),
        pytest.param(lambda kernel: kernel.mount_version_2("hugetlb"), "cpuacct, memory, pids", id="nothing_delegated"),
        pytest.param(lambda kernel: kernel.mount_version_2("cpu memory"), "pids", id="one_not_delegated"),
        pytest.param(lambda kernel: kernel.mount_version_1("memory"), "cpuacct, pids", id="one_mounted"),
    ],
)
def test_a_missing_controller_is_named_with_a_remedy(kernel: Kernel, set_up: Any, missing: str) -> None:
    set_up(kernel)
    with pytest.raises(CgroupsUnavailable, match=missing) as refusal:
        find_hierarchies()
    assert "opt out of wall 'cgroup'" in str(refusal.value)


def test_missing_permission_is_reported_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "memory").write_text("a file, where nothing can be made")
    groups = Cgroups([Hierarchy(1, str(tmp_path / "memory"), ("memory",))], "belljar/instance")
    with pytest.raises(CgroupsUnavailable, match="Delegate=yes"):
        groups.open()


FILES_OF_VERSION_2 = {
    "cgroup.procs": "",
    "cgroup.kill": "",
    "memory.max": "max\n",
    "memory.swap.max": "max\n",
    "memory.oom.group": "0\n",
    "memory.peak": "4096\n",
    "memory.current": "0\n",
    "memory.events": "low 0\nhigh 0\nmax 7\noom 3\noom_kill 2\noom_group_kill 1\n",
    "pids.max": "max\n",
    "pids.current": "0\n",
    "cpu.stat": "usage_usec 1500000\nuser_usec 1000000\nsystem_usec 500000\nnr_periods 0\n",
}


@pytest.fixture
def unified(kernel: Kernel) -> tuple[Cgroups, Path]:
    """Directories in a version 2 hierarchy, with the files that the kernel would create in a jail's cgroup."""
    own = kernel.mount_version_2("cpu memory pids", inner="/system.slice/belljar.service")
    groups = Cgroups(find_hierarchies(), "belljar/instance-1")
    groups.open()
    directory = own / "belljar" / "instance-1" / "jail-0"
    directory.mkdir()
    for name, text in FILES_OF_VERSION_2.items():
        (directory / name).write_text(text)
    return groups, directory


def test_version_2_enables_its_controllers_below(unified: tuple[Cgroups, Path]) -> None:
    _, directory = unified
    for level in (directory.parent, directory.parent.parent, directory.parent.parent.parent):
        assert set((level / "cgroup.subtree_control").read_text().split()) == {"+cpu", "+memory", "+pids"}


def test_version_2_limits_memory_without_swap_and_kills_all_at_once(unified: tuple[Cgroups, Path]) -> None:
    groups, directory = unified
    jail = groups.jail(0)
    jail.limit(64 * MIB, 12)
    assert (directory / "memory.max").read_text().startswith(str(64 * MIB))
    assert (directory / "memory.swap.max").read_text() == "0"
    assert (directory / "memory.oom.group").read_text() == "1"
    assert (directory / "pids.max").read_text().startswith("12")
    assert jail.kill_file is not None
    assert jail.oom_event is None
    jail.close()


def test_version_2_counts_from_the_beginning_of_a_run(unified: tuple[Cgroups, Path]) -> None:
    groups, directory = unified
    jail = groups.jail(0)
    jail.begin()
    assert (jail.oom_kills(), jail.cpu_seconds()) == (0, 0.0)
    (directory / "memory.events").write_text(FILES_OF_VERSION_2["memory.events"].replace("oom_kill 2", "oom_kill 5"))
    (directory / "cpu.stat").write_text("usage_usec 1750000\n")
    (directory / "memory.peak").write_text("8192\n")
    (directory / "pids.current").write_text("3\n")
    assert (jail.oom_kills(), jail.cpu_seconds(), jail.memory_peak_bytes()) == (3, 0.25, 8192)
    assert not jail.is_empty()
    jail.close()


def test_version_2_without_cgroup_kill_uses_the_pid_namespace(unified: tuple[Cgroups, Path]) -> None:
    groups, directory = unified
    (directory / "cgroup.kill").unlink()
    jail = groups.jail(0)
    assert jail.kill_file is None
    jail.close()


def test_version_2_works_without_memory_peak(unified: tuple[Cgroups, Path]) -> None:
    """Linux before 5.19 has no memory.peak."""
    groups, directory = unified
    (directory / "memory.peak").unlink()
    jail = groups.jail(0)
    jail.begin()
    assert jail.memory_peak_bytes() >= 0
    jail.close()


def test_version_2_moves_its_processes_to_a_leaf(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cgroup with processes cannot enable controllers for its children."""
    own = kernel.mount_version_2("cpu memory pids", inner="/user.slice/shell.scope")
    (own / "cgroup.procs").write_text("41\n42\n")
    moved: list[str] = []
    real = cgroups._write

    def write(path: str, text: str) -> None:
        if path == f"{own}/cgroup.subtree_control" and len(moved) < 2:
            raise OSError(16, "Device or resource busy")
        if path.endswith("cgroup.procs"):
            moved.append(f"{text} to {Path(path).parent.relative_to(own)}")
        real(path, text)

    monkeypatch.setattr(cgroups, "_write", write)
    Cgroups(find_hierarchies(), "belljar/instance-1").open()
    assert moved == ["41 to belljar-host", "42 to belljar-host"]


def test_version_2_moves_its_processes_only_once(kernel: Kernel) -> None:
    """A process started from a shell that was moved is already in the leaf, and must not create another one in it."""
    leaf = kernel.mount_version_2("cpu memory pids", inner="/user.slice/belljar-host")
    (leaf.parent / "cgroup.controllers").write_text("cpu memory pids\n")
    assert {path for _, path in found().values()} == {str(leaf.parent)}


def test_removing_a_missing_cgroup_succeeds(tmp_path: Path) -> None:
    remove_trees([str(tmp_path / "gone")], deadline_seconds=1.0)
