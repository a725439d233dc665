"""One attempt for each wall: put it up as for a guest, then try to get through.

An attempt returns a description of what it saw, or raises if the wall does not hold. Each runs in a process of its own
and need not clean up.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import select
import signal
import socket
from collections.abc import Callable, Iterator

from belljar.jail import cgroups, landlock, mounts, namespaces, policy, rlimits, seccomp, syscalls
from belljar.jail.instance import INSTANCES_MAX
from belljar.jail.probe.stage import (
    MIB,
    Missing,
    ProbeConfig,
    die_with_parent,
    enter_guest_root,
    enter_user_namespace,
    go_on_in_child,
    must_fail,
    read_status,
)

#: What each version of the landlock ABI added.
_LANDLOCK_GIVES = {
    1: "files",
    2: "renames",
    3: "truncation",
    4: "TCP (not needed: each jail has its own loopback)",
    5: "device ioctls",
    6: "abstract sockets and signals",
    7: "audit records",
}

# ---- namespaces


def _change_namespace(config: ProbeConfig, flag: int, kind: str) -> None:
    enter_user_namespace(config)
    before = os.readlink(f"/proc/self/ns/{kind}")
    syscalls.unshare(flag)
    if os.readlink(f"/proc/self/ns/{kind}") == before:
        raise Missing("the kernel reported success but changed nothing")


def try_user(config: ProbeConfig) -> str:
    before = os.readlink("/proc/self/ns/user")
    enter_user_namespace(config)
    if os.readlink("/proc/self/ns/user") == before:
        raise Missing("the kernel reported success but changed nothing")
    with open("/proc/self/uid_map") as file:
        inner, outer, count = file.read().split()
    return f"id {inner} inside is {outer} outside, {count} in all"


def try_pid(config: ProbeConfig) -> str:
    enter_user_namespace(config)
    syscalls.unshare(syscalls.CLONE_NEWPID)
    go_on_in_child()
    if os.getpid() != 1:
        raise Missing(f"the first process of a new pid namespace is number {os.getpid()}")
    return "pids start again at 1"


def try_mount(config: ProbeConfig) -> str:
    _change_namespace(config, syscalls.CLONE_NEWNS, "mnt")
    syscalls.mount(b"none", b"/", b"", syscalls.MS_REC | syscalls.MS_PRIVATE)
    syscalls.mount(b"none", b"/tmp", b"tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV)
    return "a file system mounted inside is invisible outside"


def try_ipc(config: ProbeConfig) -> str:
    _change_namespace(config, syscalls.CLONE_NEWIPC, "ipc")
    return "its own queues, semaphores and shared memory"


def try_uts(config: ProbeConfig) -> str:
    _change_namespace(config, syscalls.CLONE_NEWUTS, "uts")
    socket.sethostname(policy.HOSTNAME)
    return f"the host is called {socket.gethostname()} inside"


def try_net(config: ProbeConfig) -> str:
    _change_namespace(config, syscalls.CLONE_NEWNET, "net")
    # The kernel adds inert fallback devices (sit0, tunl0, …) to every namespace where their modules are loaded.
    namespaces.raise_loopback()
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname(), timeout=2.0).close()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as outward:
        must_fail("sending to the outside", errno.ENETUNREACH, outward.connect, ("192.0.2.1", 9))
    return "its own loopback and no route to the outside"


def try_cgroup_namespace(config: ProbeConfig) -> str:
    _change_namespace(config, syscalls.CLONE_NEWCGROUP, "cgroup")
    with open("/proc/self/cgroup") as file:
        shown = {line.rstrip("\n").split(":", 2)[2] for line in file}
    if shown - {"/"}:
        raise Missing(f"names of the host's cgroups are still visible: {', '.join(sorted(shown))}")
    return "the names of the host's cgroups are hidden"


# ---- files


def try_root(config: ProbeConfig) -> str:
    outside = set(os.listdir("/"))
    enter_guest_root(config)
    for path in ("/", "/etc", "/usr"):
        must_fail(f"making a file in {path}", errno.EROFS, os.open, f"{path}/probe", os.O_CREAT | os.O_WRONLY, 0o600)
    hidden = sorted(outside - set(os.listdir("/")))
    return f"read-only and built from an allow-list; hidden: {', '.join(hidden) or 'nothing'}"


def try_proc(config: ProbeConfig) -> str:
    enter_guest_root(config)
    syscalls.unshare(syscalls.CLONE_NEWPID | syscalls.CLONE_NEWNS)
    go_on_in_child()
    mounts.mount_proc()
    others = [name for name in os.listdir("/proc") if not name.isdigit() and name not in ("self", "thread-self")]
    if others:
        raise Missing(f"/proc shows more than processes: {', '.join(sorted(others)[:5])}")
    with open("/proc/self/mountinfo") as file:
        options = [line.rsplit(" ", 1)[1] for line in file if " /proc " in line][-1]
    if "hidepid=invisible" not in options:
        raise Missing(f"/proc was mounted without hidepid: {options.strip()}")
    return "hidepid=invisible, subset=pid: shows only its own processes"


def try_fresh_dirs(config: ProbeConfig) -> str:
    enter_guest_root(config)
    mounts.mount_fresh_dirs(mounts.fresh_dir_options(MIB))
    for directory in policy.WRITABLE_DIRS:
        _fill_with_bytes(f"{directory}/large")
        _fill_with_files(directory)
    return f"{', '.join(policy.WRITABLE_DIRS)}: new for each program, limited in bytes and in files"


def _fill_with_bytes(path: str) -> None:
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)
    written = 0
    with contextlib.suppress(OSError):
        while written <= 2 * MIB:
            written += os.write(descriptor, bytes(65536))
    os.close(descriptor)
    os.unlink(path)
    if written > MIB:
        raise Missing(f"{path} took {written} bytes where {MIB} are allowed")


def _fill_with_files(directory: str) -> None:
    allowed = MIB // policy.BYTES_PER_INODE
    for number in range(allowed + 1):
        try:
            os.close(os.open(f"{directory}/{number}", os.O_CREAT | os.O_WRONLY, 0o600))
        except OSError:
            return
    raise Missing(f"{directory} took more than the {allowed} files allowed")


def try_open_beneath(config: ProbeConfig) -> str:
    enter_guest_root(config)
    mounts.mount_fresh_dirs(mounts.fresh_dir_options(MIB))
    os.symlink("/etc/passwd", "/work/link")
    root = os.open("/work", os.O_PATH | os.O_DIRECTORY)
    must_fail("following a link", errno.ELOOP, syscalls.open_beneath, root, "link", os.O_RDONLY)
    must_fail("leaving by '..'", errno.EXDEV, syscalls.open_beneath, root, "../etc/passwd", os.O_RDONLY)
    return "openat2 follows no link and no '..' out of the work directory"


# ---- rights


def try_uid(config: ProbeConfig) -> str:
    if not config.as_root:
        raise Missing(f"programs would run with your own uid, {os.geteuid()}")
    taken = _owners(config.uid_base - (INSTANCES_MAX - 1) * policy.UIDS_PER_INSTANCE)
    if taken:
        raise Missing(f"uids reserved for programs are already in use: {', '.join(taken)}")
    enter_user_namespace(config)
    os.setresgid(policy.GUEST_UID_FIRST, policy.GUEST_UID_FIRST, policy.GUEST_UID_FIRST)
    os.setresuid(policy.GUEST_UID_FIRST, policy.GUEST_UID_FIRST, policy.GUEST_UID_FIRST)
    if int(read_status()["CapEff"], 16):
        raise Missing("capabilities were left after the change of uid")
    return f"each program has its own uid, here {config.uid_base + policy.GUEST_UID_FIRST} outside"


def _owners(first: int) -> list[str]:
    """Find users, and id ranges given to users for containers, that overlap the uids of all instances."""
    last = first + INSTANCES_MAX * policy.UIDS_PER_INSTANCE - 1
    found = []
    for path, at, count_at in (("/etc/passwd", 2, None), ("/etc/subuid", 1, 2)):
        with contextlib.suppress(OSError), open(path, errors="replace") as file:
            for fields in (line.strip().split(":") for line in file):
                with contextlib.suppress(ValueError, IndexError):
                    start = int(fields[at])
                    end = start + (int(fields[count_at]) if count_at else 1) - 1
                    if start <= last and end >= first:
                        found.append(f"{fields[0]} in {path}")
    return found


def try_capabilities(config: ProbeConfig) -> str:
    enter_user_namespace(config)
    syscalls.unshare(syscalls.CLONE_NEWUTS)
    namespaces.drop_bounding_set()
    namespaces.drop_capabilities()
    held = {name: value for name, value in read_status().items() if name.startswith("Cap") and int(value, 16)}
    if held:
        raise Missing(f"some capabilities are left: {held}")
    must_fail("naming the host", errno.EPERM, socket.sethostname, policy.HOSTNAME)
    return "none left in any of the five sets"


def try_no_new_privs(config: ProbeConfig) -> str:
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    if read_status().get("NoNewPrivs") != "1":
        raise Missing("the kernel reported success but changed nothing")
    return "NoNewPrivs is 1"


def try_seccomp(config: ProbeConfig) -> str:
    machine = os.uname().machine
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    for program in (seccomp.compile_entrance(machine), seccomp.compile_closing(machine)):
        syscalls.install_seccomp(syscalls.FilterProgram(program))
    if read_status().get("Seccomp") != "2":
        raise Missing("the kernel reported success but changed nothing")
    must_fail("a new user namespace", errno.EPERM, syscalls.unshare, syscalls.CLONE_NEWUSER)
    return f"the allow-list for {machine} is in force; unshare is refused"


def try_landlock(config: ProbeConfig) -> str:
    version = syscalls.landlock_version()
    if not version:
        raise Missing("this kernel has no landlock, or it is disabled")
    enter_guest_root(config)
    mounts.mount_fresh_dirs(mounts.fresh_dir_options(MIB))
    go_on_in_child()
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    landlock.restrict(version, (policy.WORK_DIR,), "/dev")
    os.close(os.open("/work/probe", os.O_CREAT | os.O_WRONLY, 0o600))
    must_fail("making a file in /tmp", errno.EACCES, os.open, "/tmp/probe", os.O_CREAT | os.O_WRONLY, 0o600)
    if version >= 6:
        must_fail("a signal to a process outside", errno.EPERM, os.kill, os.getppid(), 0)
    gives = ", ".join(text for since, text in _LANDLOCK_GIVES.items() if since <= version)
    return f"ABI {version}: {gives}"


def try_rlimits(config: ProbeConfig) -> str:
    with open("/proc/sys/kernel/core_pattern") as file:
        pattern = file.read().strip()
    rlimits.set_common()
    namespaces.drop_capabilities()
    core_limit = resource.getrlimit(resource.RLIMIT_CORE)
    if core_limit != (1, 1) and (core_limit != (0, 0) or pattern.startswith("|")):
        raise Missing(f"core dumps go to {pattern!r}: their limit is {core_limit}, and only 1 stops them")
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard + 1))
    except (ValueError, OSError):
        return f"no core dumps, {hard} open files; a limit cannot be raised again"
    raise Missing("a limit could be raised again")


# ---- resources


@contextlib.contextmanager
def _cgroup_jail(config: ProbeConfig) -> Iterator[tuple[cgroups.JailCgroup, list[cgroups.Hierarchy]]]:
    group = cgroups.Cgroups(cgroups.find_hierarchies(), config.cgroup_name)
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
    """Run `work` in a child that joins the jail; return its wait status."""
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


def try_memory(config: ProbeConfig) -> str:
    with _cgroup_jail(config) as (jail, hierarchies):
        jail.limit(32 * MIB, 8)
        status = _run_in_jail(jail, lambda: len(b"x" * (128 * MIB)) and 0)
        if not (os.WIFSIGNALED(status) and jail.oom_kills()):
            raise Missing("a process exceeded its memory limit and survived")
        return _where(hierarchies, "memory")


def try_processes(config: ProbeConfig) -> str:
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

    with _cgroup_jail(config) as (jail, hierarchies):
        jail.limit(64 * MIB, 4)
        status = _run_in_jail(jail, fork_until_refused)
        if os.waitstatus_to_exitcode(status) != 42:
            raise Missing("a program could start more processes than its limit")
        return _where(hierarchies, "pids")


def try_cpu(config: ProbeConfig) -> str:
    def burn() -> int:
        while os.times().user + os.times().system < 0.05:
            pass
        return 0

    with _cgroup_jail(config) as (jail, hierarchies):
        jail.limit(64 * MIB, 4)
        _run_in_jail(jail, burn)
        if jail.cpu_seconds() < 0.03:
            raise Missing("CPU time is not counted")
        return _where(hierarchies, "cpuacct")


def try_kill(config: ProbeConfig) -> str:
    """Check that a daemon with its own session, which ignores SIGTERM, ends with the first process of its namespace."""
    alive, held = os.pipe2(os.O_CLOEXEC)
    enter_user_namespace(config)
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
    return f"end of the pid namespace{_cgroup_kill(config)}"


def _cgroup_kill(config: ProbeConfig) -> str:
    with contextlib.suppress(cgroups.CgroupsUnavailable, OSError), _cgroup_jail(config) as (jail, _):
        if jail.kill_file is not None:
            return ", and cgroup.kill"
    return ""
