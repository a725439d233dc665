"""Attempts to use more than one may: memory, processes, CPU time, and life beyond the end."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Callable, Iterator

from belljar.jail import cgroups, syscalls
from belljar.jail.probe.stage import MIB, Missing, Orders, die_with_parent, enter_user_namespace


@contextlib.contextmanager
def _cgroup_jail(orders: Orders) -> Iterator[tuple[cgroups.JailCgroup, list[cgroups.Hierarchy]]]:
    group = cgroups.Cgroups(cgroups.find_hierarchies(), orders.cgroup_name)
    try:
        group.open()
        jail = group.jail(0)
        try:
            yield jail, group.hierarchies
        finally:
            jail.close()
    finally:
        group.close()


def _run_in_jail(jail: cgroups.JailCgroup, work: Callable[[], int]) -> int:
    """The wait status of a child that joins the jail and does some work there."""
    jail.begin()
    pid = os.fork()
    if pid == 0:
        die_with_parent()
        try:
            for procs in jail.join_files:
                os.write(procs, b"0")
            os._exit(work())
        finally:
            os._exit(125)
    return os.waitpid(pid, 0)[1]


def _where(hierarchies: list[cgroups.Hierarchy], controller: str) -> str:
    held = next(each for each in hierarchies if controller in each.controllers)
    return f"version {held.version}, below {held.path}"


def try_memory(orders: Orders) -> str:
    with _cgroup_jail(orders) as (jail, hierarchies):
        jail.limit(32 * MIB, 8)
        status = _run_in_jail(jail, lambda: len(b"x" * (128 * MIB)) and 0)
        if not (os.WIFSIGNALED(status) and jail.oom_kills()):
            raise Missing("a process went over its memory limit and lived")
        return _where(hierarchies, "memory")


def try_processes(orders: Orders) -> str:
    def fork_until_refused() -> int:
        started = []
        try:
            for _ in range(8):
                pid = os.fork()
                if pid == 0:
                    die_with_parent()
                    signal.pause()
                started.append(pid)
        except OSError:
            return 42
        finally:
            for pid in started:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        return 0

    with _cgroup_jail(orders) as (jail, hierarchies):
        jail.limit(64 * MIB, 4)
        status = _run_in_jail(jail, fork_until_refused)
        if os.waitstatus_to_exitcode(status) != 42:
            raise Missing("a program could start more processes than its limit")
        return _where(hierarchies, "pids")


def try_cpu(orders: Orders) -> str:
    def burn() -> int:
        while os.times().user + os.times().system < 0.05:
            pass
        return 0

    with _cgroup_jail(orders) as (jail, hierarchies):
        jail.limit(64 * MIB, 4)
        _run_in_jail(jail, burn)
        if jail.cpu_seconds() < 0.03:
            raise Missing("CPU time is not counted")
        return _where(hierarchies, "cpuacct")


def try_kill(orders: Orders) -> str:
    """A daemon that left its session and ignores what can be ignored must end with the first process."""
    alive, held = os.pipe2(os.O_CLOEXEC)
    enter_user_namespace(orders)
    syscalls.unshare(syscalls.CLONE_NEWPID)
    first = os.fork()
    if first == 0:
        if os.fork() == 0:
            os.setsid()
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            signal.pause()
    os.close(held)
    signal.pidfd_send_signal(os.pidfd_open(first), signal.SIGKILL)
    if not select.select([alive], [], [], 5.0)[0]:
        raise Missing("a process survived the end of its pid namespace")
    os.waitpid(first, 0)
    return f"end of the pid namespace{_cgroup_kill(orders)}"


def _cgroup_kill(orders: Orders) -> str:
    with contextlib.suppress(cgroups.CgroupsUnavailable, OSError), _cgroup_jail(orders) as (jail, _):
        if jail.kill_file is not None:
            return ", and cgroup.kill"
    return ""
