"""The table of walls: what each one means, how it is tried, and how to get it where it is missing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import NamedTuple

from belljar.jail.probe import attempts, resources
from belljar.jail.probe.stage import Orders

_SYSCTLS = (
    "user.max_user_namespaces",
    "kernel.unprivileged_userns_clone",
    "kernel.apparmor_restrict_unprivileged_userns",
    "kernel.yama.ptrace_scope",
    "kernel.io_uring_disabled",
    "kernel.unprivileged_bpf_disabled",
    "kernel.dmesg_restrict",
    "kernel.core_pattern",
    "kernel.pid_max",
    "vm.overcommit_memory",
    "fs.protected_symlinks",
    "fs.protected_hardlinks",
)


class Wall(NamedTuple):
    """One row of the doctor's table. `waiver` is the name it can be given up by, if it can."""

    name: str
    waiver: str
    meaning: str
    attempt: Callable[[Orders], str]
    fix: Callable[[Orders], str]


def read_sysctls() -> dict[str, str]:
    """Those that exist here, by name."""
    found = {}
    for name in _SYSCTLS:
        with contextlib.suppress(OSError), open(f"/proc/sys/{name.replace('.', '/')}") as file:
            found[name] = file.read().strip()
    return found


def _fix_user_namespace(orders: Orders) -> str:
    found = read_sysctls()
    if found.get("user.max_user_namespaces") == "0":
        return "sysctl -w user.max_user_namespaces=15000"
    if not orders.as_root and found.get("kernel.unprivileged_userns_clone") == "0":
        return "sysctl -w kernel.unprivileged_userns_clone=1"
    if not orders.as_root and found.get("kernel.apparmor_restrict_unprivileged_userns") == "1":
        return "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, or an AppArmor profile that allows userns"
    return "allow user namespaces here; in a container its seccomp and AppArmor profiles often forbid them"


def _fix_namespace(orders: Orders) -> str:
    return f"first the user namespace ({_fix_user_namespace(orders)}); then a kernel built with this namespace"


def _fix_root(orders: Orders) -> str:
    return "Linux 5.12 or newer; in a container: allow mounts, and do not mask parts of /proc"


def _fix_uid(orders: Orders) -> str:
    if orders.as_root:
        return "choose another jail.uid_base"
    return "run Belljar as root; or accept it knowingly: --without-wall uid"


def _fix_landlock(orders: Orders) -> str:
    return "Linux 5.13 or newer, started with landlock among lsm=…; or accept it knowingly: --without-wall landlock"


def _fix_cgroup(orders: Orders) -> str:
    how = "mount the cgroup controllers" if orders.as_root else "run as root, or from a systemd unit with Delegate=yes"
    return f"{how}; or accept it knowingly: --without-wall cgroup"


def _fix_kernel(orders: Orders) -> str:
    return "Linux 5.12 or newer on x86_64 or aarch64, with seccomp filters"


def _fix_rlimits(orders: Orders) -> str:
    return "start Belljar with a hard limit of 1 or more for core dumps (ulimit -Hc 1; LimitCORE=1 in a systemd unit)"


WALLS = (
    Wall("user namespace", "", "rights inside are rights over nothing outside", attempts.try_user, _fix_user_namespace),
    Wall("pid namespace", "", "no sight of other processes, no signals to them", attempts.try_pid, _fix_namespace),
    Wall("mount namespace", "", "a file tree of its own", attempts.try_mount, _fix_namespace),
    Wall("ipc namespace", "", "no queues or memory shared with others", attempts.try_ipc, _fix_namespace),
    Wall("uts namespace", "", "the host's name is not seen", attempts.try_uts, _fix_namespace),
    Wall("net namespace", "", "no network", attempts.try_net, _fix_namespace),
    Wall("cgroup namespace", "", "the host's layout is not seen", attempts.try_cgroup_namespace, _fix_namespace),
    Wall("root directory", "", "no file of the host but those it needs, none to change", attempts.try_root, _fix_root),
    Wall("/proc", "", "nothing about the host or other programs", attempts.try_proc, _fix_root),
    Wall(
        "writable directories", "", "a program cannot fill the disk or leave files", attempts.try_fresh_dirs, _fix_root
    ),
    Wall("artifacts", "", "a link planted by a program leads nowhere", attempts.try_open_beneath, _fix_root),
    Wall("uid", "uid", "no file or process outside is its own", attempts.try_uid, _fix_uid),
    Wall("capabilities", "", "no privileged operation", attempts.try_capabilities, _fix_kernel),
    Wall("no_new_privs", "", "no rights gained from setuid programs", attempts.try_no_new_privs, _fix_kernel),
    Wall("seccomp", "", "no system call beyond the list", attempts.try_seccomp, _fix_kernel),
    Wall("landlock", "landlock", "a second opinion on files and signals", attempts.try_landlock, _fix_landlock),
    Wall("rlimits", "", "no core dumps, few descriptors", attempts.try_rlimits, _fix_rlimits),
    Wall("cgroup memory", "cgroup", "memory of all its processes together", resources.try_memory, _fix_cgroup),
    Wall("cgroup pids", "cgroup", "no fork bomb", resources.try_processes, _fix_cgroup),
    Wall("cgroup cpu", "cgroup", "CPU time of all its processes together", resources.try_cpu, _fix_cgroup),
    Wall("kill", "", "nothing survives its program", resources.try_kill, _fix_kernel),
)
