"""Meters: CPU time of all Belljar processes, memory of each, and how busy the rest of the machine was."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class CpuMeter:
    """CPU seconds of this process and all its descendants, including those that have ended.

    A fresh cgroup counts exactly, because Belljar makes the cgroups of its guests below its own. Where none can be
    had, /proc is summed up: in ticks of 10 ms, and without processes whose parent left them.
    """

    def __init__(self) -> None:
        self._directory, self._home, self._usage = _enter_fresh_cgroup()
        self.source = "cgroup" if self._directory else "/proc sums"

    def seconds(self) -> float:
        """CPU used so far."""
        if self._usage is None:
            return sum(map(_tree_ticks, [os.getpid()])) / _TICKS_PER_SECOND
        text = self._usage.read_text()
        return int(text) / 1e9 if self._usage.name == "cpuacct.usage" else int(text.split()[1]) / 1e6

    def close(self) -> None:
        """Step out of the cgroup and remove it; everything in it must have ended."""
        if self._directory is not None and self._home is not None:
            with contextlib.suppress(OSError):
                (self._home / "cgroup.procs").write_text(str(os.getpid()))
            for directory, _, _ in os.walk(self._directory, topdown=False):
                with contextlib.suppress(OSError):
                    Path(directory).rmdir()


def _enter_fresh_cgroup() -> tuple[Path | None, Path | None, Path | None]:
    for home, version in _own_cgroups():
        directory = home / f"belljar-bench-{os.getpid()}"
        try:
            if version == 2:  # the controllers Belljar needs must reach the new cgroup, or it would miss a wall
                (home / "cgroup.subtree_control").write_text("+cpu +memory +pids")
            directory.mkdir()
            (directory / "cgroup.procs").write_text(str(os.getpid()))
        except OSError:
            with contextlib.suppress(OSError):
                directory.rmdir()
            continue
        return directory, home, directory / ("cpuacct.usage" if version == 1 else "cpu.stat")
    return None, None, None


def _own_cgroups() -> Iterator[tuple[Path, int]]:
    """Our cgroup where CPU is counted: in the cpuacct hierarchy, or in the unified one if that has the controllers."""
    own = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            own[controller] = path.lstrip("/")
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, (kind, _, options) = line.split(" - ")[0].split(), line.split(" - ")[1].split()[:3]
        if kind == "cgroup" and "cpuacct" in options.split(","):
            yield Path(fields[4]) / own.get("cpuacct", ""), 1
        elif kind == "cgroup2":
            home = Path(fields[4]) / own.get("", "")
            with contextlib.suppress(OSError):
                if {"cpu", "memory", "pids"} <= set((home / "cgroup.controllers").read_text().split()):
                    yield home, 2


def _tree_ticks(pid: int) -> int:
    total = 0
    for each in [pid, *descendants(pid)]:
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
            total += sum(map(int, fields[11:15]))  # user, system, and both of children waited for
    return total


class Bystanders:
    """How much of the machine others used: its busy time that was not ours."""

    def __init__(self, meter: CpuMeter) -> None:
        self._meter = meter
        self._began, self._busy, self._ours = time.monotonic(), _machine_busy_seconds(), meter.seconds()

    def share(self) -> float:
        """Between 0 and 1 since this object was made; kernel threads that clean up after us count as others."""
        elapsed = (time.monotonic() - self._began) * (os.cpu_count() or 1)
        others = (_machine_busy_seconds() - self._busy) - (self._meter.seconds() - self._ours)
        return max(0.0, min(1.0, others / elapsed)) if elapsed > 0 else 0.0


def _machine_busy_seconds() -> float:
    with open("/proc/stat") as file:  # noqa: PTH123  read on every sample
        fields = list(map(int, file.readline().split()[1:9]))
    return (sum(fields) - fields[3] - fields[4]) / _TICKS_PER_SECOND  # all but idle and waiting for disks


def descendants(pid: int) -> list[int]:
    """Every process below `pid`, parents before children."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                found += [child, *descendants(child)]
    return found


@dataclass(frozen=True, slots=True)
class Memory:
    """Of one process, in bytes.

    Pss counts a page shared by n processes as a part of 1/n, so it also changes when another process with the same
    libraries starts or ends. What a process has written itself (anonymous) does not.
    """

    proportional: int
    private: int
    anonymous: int


def memory_of(pid: int) -> Memory:
    """What the kernel has added up for this process.

    Raises:
        OSError: the process is gone or not ours to look at.
    """
    sizes = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, kibibytes = line.split()[:2]
        sizes[name] = int(kibibytes) * 1024
    private = sizes["Private_Clean:"] + sizes["Private_Dirty:"]
    return Memory(proportional=sizes["Pss:"], private=private, anonymous=sizes["Anonymous:"])


@dataclass(frozen=True, slots=True)
class Member:
    """One process of a running Belljar."""

    pid: int
    role: str  # host, runner, keeper, warden, jail_init, "zygote …" or "ready guest …", with its kind


def members(host: int) -> list[Member]:
    """Every process with its role, from the shape of the tree: host, keeper, warden, then all others.

    A runner of a server is the host of a tree of its own.
    """
    found = [Member(host, "host")]
    for keeper in _children(host):
        if is_runner(keeper):
            found += [Member(each.pid, each.role.replace("host", "runner")) for each in members(keeper)]
            continue
        found.append(Member(keeper, "keeper"))
        for warden in _children(keeper):
            found.append(Member(warden, "warden"))
            for child in _children(warden):
                if _name(child) == "sleep":
                    found.append(Member(child, "jail_init"))
                    continue
                kind = "packages" if _has_numpy(child) else "bare"
                found.append(Member(child, f"zygote {kind}"))
                found += [Member(guest, f"ready guest {kind}") for guest in _children(child)]
    return found


def is_runner(pid: int) -> bool:
    """Whether this process runs programs for a server."""
    try:
        return b"runners.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _children(pid: int) -> list[int]:
    return [child for child in descendants(pid) if _parent(child) == pid]


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _has_numpy(pid: int) -> bool:
    try:
        return "numpy" in Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return False
