"""The table of walls: what each one does, which attempt tests it, and how to get it where it is missing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import NamedTuple

from belljar.jail.probe import attempts
from belljar.jail.probe.stage import ProbeConfig

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
    """One row of the doctor's table; `waiver` is the name for --without-wall, or empty if the wall is required."""

    name: str
    waiver: str
    meaning: str
    attempt: Callable[[ProbeConfig], str]
    fix: str


def read_sysctls() -> dict[str, str]:
    """Return the values of those in `_SYSCTLS` that exist on this machine."""
    found = {}
    for name in _SYSCTLS:
        with contextlib.suppress(OSError), open(f"/proc/sys/{name.replace('.', '/')}") as file:
            found[name] = file.read().strip()
    return found


def _fix_user_namespace(config: ProbeConfig) -> str:
    found = read_sysctls()
    if found.get("user.max_user_namespaces") == "0":
        return "sysctl -w user.max_user_namespaces=15000"
    if not config.as_root and found.get("kernel.unprivileged_userns_clone") == "0":
        return "sysctl -w kernel.unprivileged_userns_clone=1"
    if not config.as_root and found.get("kernel.apparmor_restrict_unprivileged_userns") == "1":
        return "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, or an AppArmor profile that allows userns"
    return "allow user namespaces; in a container, its seccomp and AppArmor profiles often forbid them"


def list_walls(config: ProbeConfig) -> tuple[Wall, ...]:
    user = _fix_user_namespace(config)
    namespace = f"first allow user namespaces ({user}); then use a kernel built with this namespace"
    root = "Linux 5.12 or newer; in a container: allow mounts, and do not mask parts of /proc"
    uid = "choose another jail.uid_base" if config.as_root else "run Belljar as root, or opt out: --without-wall uid"
    landlock = "Linux 5.13 or newer, started with landlock in lsm=…; or opt out: --without-wall landlock"
    controllers = "mount the cgroup controllers" if config.as_root else "run as root or with systemd's Delegate=yes"
    cgroup = f"{controllers}; or opt out: --without-wall cgroup"
    kernel = "Linux 5.12 or newer on x86_64 or aarch64, with seccomp filters"
    core = "start Belljar with a hard limit of 1 or more for core dumps (ulimit -Hc 1; LimitCORE=1 in a systemd unit)"
    return (
        Wall("user namespace", "", "its privileges do not apply outside", attempts.try_user, user),
        Wall("pid namespace", "", "no other process is visible or can be signalled", attempts.try_pid, namespace),
        Wall("mount namespace", "", "its own file tree", attempts.try_mount, namespace),
        Wall("ipc namespace", "", "no queues or memory shared with others", attempts.try_ipc, namespace),
        Wall("uts namespace", "", "the host's name is hidden", attempts.try_uts, namespace),
        Wall("net namespace", "", "no network", attempts.try_net, namespace),
        Wall("cgroup namespace", "", "the host's layout is hidden", attempts.try_cgroup_namespace, namespace),
        Wall("root directory", "", "only the host files it needs, all read-only", attempts.try_root, root),
        Wall("/proc", "", "nothing about the host or other programs", attempts.try_proc, root),
        Wall("writable directories", "", "cannot fill the disk or leave files behind", attempts.try_fresh_dirs, root),
        Wall("artifacts", "", "symbolic links in the work directory are not followed", attempts.try_open_beneath, root),
        Wall("uid", "uid", "owns no file or process outside", attempts.try_uid, uid),
        Wall("capabilities", "", "no privileged operation", attempts.try_capabilities, kernel),
        Wall("no_new_privs", "", "no rights gained from setuid programs", attempts.try_no_new_privs, kernel),
        Wall("seccomp", "", "no system call beyond the allow-list", attempts.try_seccomp, kernel),
        Wall("landlock", "landlock", "a second check on files and signals", attempts.try_landlock, landlock),
        Wall("rlimits", "", "no core dumps, few descriptors", attempts.try_rlimits, core),
        Wall("cgroup memory", "cgroup", "limits memory of all its processes together", attempts.try_memory, cgroup),
        Wall("cgroup pids", "cgroup", "no fork bomb", attempts.try_processes, cgroup),
        Wall("cgroup cpu", "cgroup", "limits CPU time of all its processes together", attempts.try_cpu, cgroup),
        Wall("kill", "", "no process survives its program", attempts.try_kill, kernel),
    )
