"""Cgroups: the kernel counts and limits memory, processes and CPU of a guest together with everything it starts.

The three controllers may be in version 1 hierarchies, in the unified version 2 hierarchy, or divided between both;
each is looked up where it is mounted. The guests' directories are created below the server's own cgroup, so limits
set on the server also apply to its guests.

A jail keeps its directories for life and is reused only if they are empty. Their files are opened once and read with
pread, so a run costs no path lookup.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from collections.abc import Iterator

RESIDUE_BYTES_MAX = 4 << 20  # slabs and page tables of past guests, which the kernel frees some time later
_OLD_PEAK_BYTES_MAX = 16 << 20  # where the peak cannot be reset: the highest one a new guest may inherit
_HOST_LEAF = "belljar-host"
CONTROLLERS = ("memory", "pids", "cpuacct")  # version 2 calls the last one cpu
#: The controller that gives each jail its own share of the CPU. It comes with version 2, and with cpuacct where version
#: 1 mounts both together. Where it has a hierarchy of its own, only sessions join it: joining would cost a small
#: program 4 % of its run (bench/compare.py). One-shot programs then share the CPU process by process.
_SHARES = "cpu"
#: The file into which a process writes itself to join. `tasks` moves one thread, which must be the writer itself, and
#: does not take the lock that every fork and exit on the machine takes; version 2 has it for threaded cgroups only.
_JOIN_FILES = {1: "tasks", 2: "cgroup.procs"}


class CgroupsUnavailable(Exception):
    """Cgroups cannot be created on this machine; the message says why and what to do."""


class Hierarchy:
    """A mounted cgroup hierarchy: the path of this process's cgroup in it, and which of `CONTROLLERS` it holds."""

    def __init__(self, version: int, path: str, controllers: tuple[str, ...]) -> None:
        self.version = version
        self.path = path
        self.controllers = controllers


def find_hierarchies(process: str = "self") -> list[Hierarchy]:
    """Find the hierarchy of each controller, and the cgroup of `process` in it, in the kernel's own tables.

    Raises:
        CgroupsUnavailable: a controller is not mounted.
    """
    own = dict(_paths_of(process))
    found: list[Hierarchy] = []
    missing = set(CONTROLLERS)
    shares = {_SHARES}
    for kind, root, mount_point, options in _cgroup_mounts():
        if kind == "cgroup":
            held = tuple(sorted(missing & set(options))) or tuple(shares & set(options))
            shares -= set(options)
            inner = own.get(held[0] if held else "", "/")
        else:
            inner = own.get("", "/").removesuffix(f"/{_HOST_LEAF}") or "/"  # `_hand_down` may have moved this process
            held = _unified_controllers(_below(mount_point, root, inner), missing)
        if held:
            found.append(Hierarchy(1 if kind == "cgroup" else 2, _below(mount_point, root, inner), held))
            missing -= set(held)
    if missing:
        names = ", ".join(sorted(missing))
        raise CgroupsUnavailable(
            f"no cgroup controller for {names} is mounted; mount cgroup2, or opt out of wall 'cgroup'"
        )
    return sorted(found, key=lambda each: each.controllers == (_SHARES,))  # last, because only sessions join it


def _paths_of(process: str) -> Iterator[tuple[str, str]]:
    with open(f"/proc/{process}/cgroup") as file:
        for line in file:
            _, controllers, path = line.rstrip("\n").split(":", 2)
            for controller in controllers.split(","):
                yield controller, path


def _cgroup_mounts() -> Iterator[tuple[str, str, str, list[str]]]:
    with open("/proc/self/mountinfo") as file:
        for line in file:
            before, _, after = line.partition(" - ")
            fields, (kind, _, options) = before.split(), after.split()[:3]
            if kind in ("cgroup", "cgroup2"):
                yield kind, fields[3], fields[4], options.split(",")


def _below(mount_point: str, root: str, path: str) -> str:
    inner = os.path.relpath(path, root) if f"{path}/".startswith(f"{root.rstrip('/')}/") else "."
    return os.path.normpath(os.path.join(mount_point, inner))


def _unified_controllers(path: str, wanted: set[str]) -> tuple[str, ...]:
    try:
        with open(f"{path}/cgroup.controllers") as file:
            offered = set(file.read().split())
    except OSError:
        return ()
    return tuple(sorted(name for name in wanted if ("cpu" if name == "cpuacct" else name) in offered))


class Cgroups:
    """The directories of this Belljar instance, one in each hierarchy; the jails' cgroups are below them."""

    def __init__(self, hierarchies: list[Hierarchy], name: str) -> None:
        self.hierarchies = hierarchies
        self.directories = [(each, f"{each.path}/{name}") for each in hierarchies]

    def open(self) -> None:
        """Create the directories.

        Raises:
            CgroupsUnavailable: this user lacks the permission, or the controllers cannot be enabled below.
        """
        for hierarchy, directory in tuple(self.directories):
            try:
                if hierarchy.version == 2:
                    _hand_down(hierarchy)
                for path in (os.path.dirname(directory), directory):
                    os.makedirs(path, exist_ok=True)
                    if hierarchy.version == 2:
                        _write(f"{path}/cgroup.subtree_control", _enable(hierarchy))
            except OSError as error:
                if hierarchy.controllers == (_SHARES,):
                    self.directories.remove((hierarchy, directory))
                    continue
                raise CgroupsUnavailable(
                    f"cannot create a cgroup in {hierarchy.path}: {error.strerror}; run as root or with a delegated "
                    "cgroup (systemd: Delegate=yes), or opt out of wall 'cgroup'"
                ) from error

    def jail(self, number: int) -> JailCgroup:
        """Create the cgroup of jail `number`."""
        return JailCgroup([(each, f"{directory}/jail-{number}") for each, directory in self.directories])

    def close(self, deadline_seconds: float = 5.0) -> None:
        """Kill what is left in the directories and remove them."""
        remove_trees([directory for _, directory in self.directories], deadline_seconds)
        for _, directory in self.directories:
            with contextlib.suppress(OSError):
                os.rmdir(os.path.dirname(directory))  # fails while another instance uses it


def remove_trees(directories: list[str], deadline_seconds: float) -> None:
    """Kill all processes in these cgroups, of this or of an earlier instance, and remove the directories."""
    deadline = time.monotonic() + deadline_seconds
    for directory in directories:
        for path, _, _ in os.walk(directory, topdown=False):
            while not _remove(path) and time.monotonic() < deadline:
                time.sleep(0.005)


def _remove(path: str) -> bool:
    try:
        os.rmdir(path)
    except FileNotFoundError:
        return True
    except OSError:
        with contextlib.suppress(OSError):
            _kill_processes(path)
        return False
    return True


def _processes(path: str) -> list[int]:
    with open(f"{path}/cgroup.procs") as file:
        return [int(line) for line in file if line.strip() != "0"]


def _kill_processes(path: str) -> None:
    """Kill each member through a pidfd, after checking that its pid was not reused for a process outside."""
    opened = {}
    try:
        for pid in _processes(path):
            with contextlib.suppress(OSError):
                opened[pid] = os.pidfd_open(pid)
        still_here = set(_processes(path))
        for pid, descriptor in opened.items():
            if pid in still_here:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    finally:
        for descriptor in opened.values():
            os.close(descriptor)


def _enable(hierarchy: Hierarchy) -> str:
    return " ".join("+" + ("cpu" if name == "cpuacct" else name) for name in hierarchy.controllers)


def _hand_down(hierarchy: Hierarchy) -> None:
    """Enable the controllers for child cgroups.

    Version 2 allows processes only in leaves, so all processes of this cgroup move to a leaf below it first.
    """
    try:
        _write(f"{hierarchy.path}/cgroup.subtree_control", _enable(hierarchy))
    except OSError:
        leaf = f"{hierarchy.path}/{_HOST_LEAF}"
        os.makedirs(leaf, exist_ok=True)
        with open(f"{hierarchy.path}/cgroup.procs") as file:
            for line in file.read().split():
                _write(f"{leaf}/cgroup.procs", line)
        _write(f"{hierarchy.path}/cgroup.subtree_control", _enable(hierarchy))


class JailCgroup:
    """The cgroup of one jail: guests join it, the host sets its limits and reads its counters."""

    def __init__(self, directories: list[tuple[Hierarchy, str]]) -> None:
        self._paths = [path for _, path in directories]
        self._admitting = [path for hierarchy, path in directories if hierarchy.controllers != (_SHARES,)]
        self.join_files: list[int] = []  # each guest writes itself into these, while it has a single thread
        self.shares_join: list[int] = []  # sessions write themselves into this one as well, if it exists
        self.kill_file: int | None = None
        self.oom_event: int | None = None  # version 1 only: readable when the kernel has killed a process for memory
        self._socket_max: int | None = None
        self._limits: tuple[int, int] = (0, 0)
        self._peak_begins_anew = True
        self._memory_max: list[int] = []
        self._memory_peak = self._memory_now = self._reclaim = self._oom = -1
        self._pids_max = self._pids_current = self._cpu = -1
        try:
            for hierarchy, path in directories:
                self._open(hierarchy, path)
            self._before = self._counted()
        except BaseException:
            self.close()
            raise

    def _open(self, hierarchy: Hierarchy, path: str) -> None:
        os.makedirs(path, exist_ok=True)
        joined = self.shares_join if hierarchy.controllers == (_SHARES,) else self.join_files
        joined.append(_open(f"{path}/{_JOIN_FILES[hierarchy.version]}", os.O_WRONLY))
        if "memory" in hierarchy.controllers:
            self.memory_join = self.join_files[-1]  # joining this one alone counts the memory of a process here
            self._memory_path = path
        if hierarchy.version == 2 and self.kill_file is None and os.path.exists(f"{path}/cgroup.kill"):
            self.kill_file = _open(f"{path}/cgroup.kill", os.O_WRONLY)
        for controller in (name for name in hierarchy.controllers if name != _SHARES):
            getattr(self, f"_open_{controller}")(hierarchy.version, path)

    def _open_memory(self, version: int, path: str) -> None:
        self._memory_version = version
        if version == 1:
            self._memory_max = [_open(f"{path}/memory.limit_in_bytes")]
            with contextlib.suppress(FileNotFoundError):  # this kernel does not count swap
                self._memory_max.append(_open(f"{path}/memory.memsw.limit_in_bytes"))
            self._memory_peak = _open(f"{path}/memory.max_usage_in_bytes")
            self._memory_now = _open(f"{path}/memory.usage_in_bytes", os.O_RDONLY)
            self._reclaim = _open(f"{path}/memory.force_empty", os.O_WRONLY)
            with contextlib.suppress(FileNotFoundError):  # socket buffers have a limit of their own
                self._socket_max = _open(f"{path}/memory.kmem.tcp.limit_in_bytes")
            self._oom = _open(f"{path}/memory.oom_control")
            self.oom_event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            _write(f"{path}/cgroup.event_control", f"{self.oom_event} {self._oom}")
        else:
            _write(f"{path}/memory.oom.group", "1")
            with contextlib.suppress(OSError):
                _write(f"{path}/memory.swap.max", "0")
            self._memory_max = [_open(f"{path}/memory.max")]
            peak = f"{path}/memory.peak"  # since Linux 5.19; older kernels only report what is held at the end
            known = os.path.exists(peak)
            self._memory_peak = _open(peak) if known else _open(f"{path}/memory.current", os.O_RDONLY)
            self._memory_now = _open(f"{path}/memory.current", os.O_RDONLY)
            reclaim = f"{path}/memory.reclaim"  # since Linux 5.19
            self._reclaim = _open(reclaim if os.path.exists(reclaim) else "/dev/null", os.O_WRONLY)
            self._oom = _open(f"{path}/memory.events", os.O_RDONLY)

    def _open_pids(self, version: int, path: str) -> None:
        self._pids_max = _open(f"{path}/pids.max")
        self._pids_current = _open(f"{path}/pids.current", os.O_RDONLY)

    def _open_cpuacct(self, version: int, path: str) -> None:
        self._cpu_version = version
        self._cpu = _open(f"{path}/cpuacct.usage" if version == 1 else f"{path}/cpu.stat", os.O_RDONLY)

    def limit(self, memory_bytes: int, processes: int) -> None:
        """Set the limits of the next guest.

        Version 1 requires memory limit <= memory and swap limit at all times, hence the order of the writes.
        """
        if self._limits == (memory_bytes, processes):
            return
        files = self._memory_max if memory_bytes < self._limits[0] else self._memory_max[::-1]
        first_time = self._limits[0] == 0
        for file in self._memory_max if first_time else files:
            os.pwrite(file, str(memory_bytes).encode(), 0)
        if self._socket_max is not None:
            os.pwrite(self._socket_max, str(memory_bytes).encode(), 0)
        os.pwrite(self._pids_max, str(processes).encode(), 0)
        self._limits = (memory_bytes, processes)

    def begin(self) -> None:
        """Reset the counters for a new guest."""
        if self._peak_begins_anew:
            try:
                os.pwrite(self._memory_peak, b"0", 0)
            except OSError:
                self._peak_begins_anew = False  # version 2 before Linux 6.12
        self._before = self._counted()

    def _counted(self) -> tuple[bytes, bytes]:
        """Read the counters of CPU time and OOM kills as raw bytes; they are parsed only when needed."""
        return os.pread(self._cpu, 64, 0), os.pread(self._oom, 512, 0)

    def usage(self) -> tuple[float, int, int]:
        """Return CPU seconds, peak memory in bytes and number of OOM kills since `begin`."""
        cpu_before, oom_before = self._before
        cpu, oom = os.pread(self._cpu, 64, 0), os.pread(self._oom, 512, 0)
        kills = 0 if oom == oom_before else _kills(oom) - _kills(oom_before)
        return self._seconds_between(cpu_before, cpu), int(os.pread(self._memory_peak, 32, 0)), kills

    def cpu_seconds(self) -> float:
        return self._seconds_between(self._before[0], os.pread(self._cpu, 64, 0))

    def _seconds_between(self, before: bytes, now: bytes) -> float:
        if self._cpu_version == 1:
            return (int(now) - int(before)) / 1e9
        return (_microseconds(now) - _microseconds(before)) / 1e6

    def memory_peak_bytes(self) -> int:
        return int(os.pread(self._memory_peak, 32, 0))

    def memory_bytes(self) -> int:
        return int(os.pread(self._memory_now, 32, 0))

    def room_bytes(self) -> int:
        """Return how much more memory fits before the kernel kills; page cache that it can drop counts as free."""
        with open(f"{self._memory_path}/memory.stat") as file:
            counted = dict(line.split() for line in file)
        prefix = "total_" if self._memory_version == 1 else ""
        droppable = sum(int(counted.get(f"{prefix}{name}", 0)) for name in ("active_file", "inactive_file"))
        return self._limits[0] - self.memory_bytes() + droppable

    def oom_kills(self) -> int:
        """Return how many processes the kernel has killed for memory since `begin`."""
        now, before = os.pread(self._oom, 512, 0), self._before[1]
        return 0 if now == before else _kills(now) - _kills(before)

    def is_empty(self) -> bool:
        """Whether no process is left, not even a thread of a zombie."""
        return self.tasks() == 0

    def tasks(self) -> int:
        """Return the number of processes and threads in this cgroup."""
        try:
            return int(os.pread(self._pids_current, 16, 0))
        except OSError as error:
            if error.errno != errno.ENODEV:
                raise
            return 0  # a container that ends removes the cgroups below its own

    def processes(self) -> list[int]:
        """Return the pids in this cgroup, as numbered in the caller's pid namespace."""
        return _processes(self._paths[0])

    def admit(self, pid: int) -> None:
        """Move a process in, with all its threads, except in a hierarchy that only holds CPU shares."""
        for path in self._admitting:
            _write(f"{path}/cgroup.procs", str(pid))

    def put_back(self, pid: int) -> None:
        """Undo `admit` for a process that was admitted by mistake: it moves to its parent's cgroup."""
        if pid not in self.processes():
            return
        with contextlib.suppress(OSError, StopIteration):  # it has ended
            with open(f"/proc/{pid}/status") as file:
                parent = next(line.split()[1] for line in file if line.startswith("PPid:"))
            for hierarchy in find_hierarchies(parent):
                leaf = f"{hierarchy.path}/{_HOST_LEAF}"
                place = leaf if hierarchy.version == 2 and os.path.isdir(leaf) else hierarchy.path
                _write(f"{place}/cgroup.procs", str(pid))

    def kill_all(self) -> None:
        """Kill all processes. Call it until the cgroup is empty: a process that forks meanwhile may be missed."""
        os.pwrite(self._pids_max, b"0", 0)
        self._limits = (self._limits[0], 0)
        if self.kill_file is not None:
            os.write(self.kill_file, b"1")
            return
        _kill_processes(self._paths[0])

    def is_pristine(self, is_known_empty: bool = False) -> bool:
        """Whether the next guest gets this cgroup as if it were new.

        It must be empty, memory of earlier guests must be freed (the kernel takes some time for that), and their peak
        must not be reported as the next guest's.
        """
        try:
            return (
                (is_known_empty or self.is_empty())
                and int(os.pread(self._memory_now, 32, 0)) < RESIDUE_BYTES_MAX
                and (self._peak_begins_anew or self.memory_peak_bytes() < _OLD_PEAK_BYTES_MAX)
            )
        except OSError:
            return False  # the cgroup was removed

    def reclaim(self) -> None:
        """Ask the kernel to free unused memory now, which it would otherwise do later."""
        with contextlib.suppress(OSError):
            os.write(self._reclaim, b"0" if self._memory_version == 1 else b"64M")

    def remove(self) -> bool:
        """Remove the directories and close their files; return False and do nothing while a process is in them."""
        if not self.is_empty():
            return False
        for path in self._paths:
            with contextlib.suppress(OSError):  # then `Cgroups.close` removes it
                os.rmdir(path)
        self.close()
        return True

    def close(self) -> None:
        """Close the files; `Cgroups.close` removes the directories."""
        files = [*self.join_files, *self.shares_join, *self._memory_max, self._memory_peak, self._oom, self._pids_max]
        files += [self._pids_current, self._cpu, self._memory_now, self._reclaim]
        files += [each for each in (self.kill_file, self.oom_event, self._socket_max) if each is not None]
        for file in files:
            if file >= 0:
                os.close(file)


def _open(path: str, flags: int = os.O_RDWR) -> int:
    return os.open(path, flags | os.O_CLOEXEC)


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def _microseconds(statistics: bytes) -> int:
    return int(statistics.split(None, 2)[1])


def _kills(events: bytes) -> int:
    words = events.split()
    return int(words[words.index(b"oom_kill") + 1])
