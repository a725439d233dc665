"""One attempt for each wall of a jail: put it up as for a guest, then try to get through.

An attempt returns what was seen, or raises. It runs in a process of its own and need not clean up.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import socket

from belljar.jail import landlock, mounts, namespaces, policy, rlimits, seccomp, syscalls
from belljar.jail.instance import INSTANCES_MAX
from belljar.jail.probe.stage import (
    MIB,
    Missing,
    Orders,
    enter_user_namespace,
    enter_world,
    go_on_in_child,
    must_fail,
    read_status,
)

#: What each landlock ABI has added.
_LANDLOCK_GIVES = {
    1: "files",
    2: "renames",
    3: "truncation",
    4: "TCP (not needed: the loopback is its own)",
    5: "device ioctls",
    6: "abstract sockets and signals",
    7: "audit records",
}

# ---- namespaces


def _change_namespace(orders: Orders, flag: int, kind: str) -> None:
    enter_user_namespace(orders)
    before = os.readlink(f"/proc/self/ns/{kind}")
    syscalls.unshare(flag)
    if os.readlink(f"/proc/self/ns/{kind}") == before:
        raise Missing("the kernel said yes and changed nothing")


def try_user(orders: Orders) -> str:
    before = os.readlink("/proc/self/ns/user")
    enter_user_namespace(orders)
    if os.readlink("/proc/self/ns/user") == before:
        raise Missing("the kernel said yes and changed nothing")
    with open("/proc/self/uid_map") as file:
        inner, outer, count = file.read().split()
    return f"id {inner} inside is {outer} outside, {count} in all"


def try_pid(orders: Orders) -> str:
    enter_user_namespace(orders)
    syscalls.unshare(syscalls.CLONE_NEWPID)
    go_on_in_child()
    if os.getpid() != 1:
        raise Missing(f"the first process of a new pid namespace is number {os.getpid()}")
    return "processes are counted anew, from 1"


def try_mount(orders: Orders) -> str:
    _change_namespace(orders, syscalls.CLONE_NEWNS, "mnt")
    syscalls.mount(b"none", b"/", b"", syscalls.MS_REC | syscalls.MS_PRIVATE)
    syscalls.mount(b"none", b"/tmp", b"tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV)
    return "a file system mounted inside is not seen outside"


def try_ipc(orders: Orders) -> str:
    _change_namespace(orders, syscalls.CLONE_NEWIPC, "ipc")
    return "queues, semaphores and shared memory of its own"


def try_uts(orders: Orders) -> str:
    _change_namespace(orders, syscalls.CLONE_NEWUTS, "uts")
    socket.sethostname(policy.HOSTNAME)
    return f"the host is called {socket.gethostname()} inside"


def try_net(orders: Orders) -> str:
    _change_namespace(orders, syscalls.CLONE_NEWNET, "net")
    # The kernel adds inert fallback devices (sit0, tunl0, …) to every namespace where their modules are loaded.
    namespaces.raise_loopback()
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname(), timeout=2.0).close()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as outward:
        must_fail("sending to the outside", errno.ENETUNREACH, outward.connect, ("192.0.2.1", 9))
    return "a loopback of its own and no way out"


def try_cgroup_namespace(orders: Orders) -> str:
    _change_namespace(orders, syscalls.CLONE_NEWCGROUP, "cgroup")
    with open("/proc/self/cgroup") as file:
        shown = {line.rstrip("\n").split(":", 2)[2] for line in file}
    if shown - {"/"}:
        raise Missing(f"names of the host's cgroups are still seen: {', '.join(sorted(shown))}")
    return "the names of the host's cgroups are not seen"


# ---- files


def try_root(orders: Orders) -> str:
    outside = set(os.listdir("/"))
    enter_world(orders)
    for path in ("/", "/etc", "/usr"):
        must_fail(f"making a file in {path}", errno.EROFS, os.open, f"{path}/probe", os.O_CREAT | os.O_WRONLY, 0o600)
    hidden = sorted(outside - set(os.listdir("/")))
    return f"read-only and built from a list; not in it: {', '.join(hidden) or 'nothing'}"


def try_proc(orders: Orders) -> str:
    enter_world(orders)
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
    return "hidepid=invisible, subset=pid: one's own processes and nothing else"


def try_fresh_dirs(orders: Orders) -> str:
    enter_world(orders)
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


def try_open_beneath(orders: Orders) -> str:
    enter_world(orders)
    mounts.mount_fresh_dirs(mounts.fresh_dir_options(MIB))
    os.symlink("/etc/passwd", "/work/link")
    root = os.open("/work", os.O_PATH | os.O_DIRECTORY)
    must_fail("following a link", errno.ELOOP, syscalls.open_beneath, root, "link", os.O_RDONLY)
    must_fail("leaving by '..'", errno.EXDEV, syscalls.open_beneath, root, "../etc/passwd", os.O_RDONLY)
    return "openat2 follows no link and no '..' out of the work directory"


# ---- rights


def try_uid(orders: Orders) -> str:
    if not orders.as_root:
        raise Missing(f"programs would have your own uid, {os.geteuid()}")
    taken = _owners(orders.uid_base - (INSTANCES_MAX - 1) * policy.UIDS_PER_INSTANCE)
    if taken:
        raise Missing(f"the uids set aside for programs belong to somebody: {', '.join(taken)}")
    enter_user_namespace(orders)
    os.setresgid(policy.GUEST_UID_FIRST, policy.GUEST_UID_FIRST, policy.GUEST_UID_FIRST)
    os.setresuid(policy.GUEST_UID_FIRST, policy.GUEST_UID_FIRST, policy.GUEST_UID_FIRST)
    if int(read_status()["CapEff"], 16):
        raise Missing("the change of uid left capabilities behind")
    return f"each program has one of its own, here {orders.uid_base + policy.GUEST_UID_FIRST} outside"


def _owners(first: int) -> list[str]:
    """Who has ids in the range of all instances: users, and ranges handed to users for containers."""
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


def try_capabilities(orders: Orders) -> str:
    enter_user_namespace(orders)
    syscalls.unshare(syscalls.CLONE_NEWUTS)
    namespaces.drop_bounding_set()
    namespaces.drop_capabilities()
    held = {name: value for name, value in read_status().items() if name.startswith("Cap") and int(value, 16)}
    if held:
        raise Missing(f"some are left: {held}")
    must_fail("naming the host", errno.EPERM, socket.sethostname, policy.HOSTNAME)
    return "none left in any of the five sets"


def try_no_new_privs(orders: Orders) -> str:
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    if read_status().get("NoNewPrivs") != "1":
        raise Missing("the kernel said yes and changed nothing")
    return "NoNewPrivs is 1"


def try_seccomp(orders: Orders) -> str:
    machine = os.uname().machine
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    for program in (seccomp.compile_entrance(machine), seccomp.compile_closing(machine)):
        syscalls.install_seccomp(syscalls.FilterProgram(program))
    if read_status().get("Seccomp") != "2":
        raise Missing("the kernel said yes and changed nothing")
    must_fail("a new user namespace", errno.EPERM, syscalls.unshare, syscalls.CLONE_NEWUSER)
    return f"the allow-list for {machine} is in force; unshare is refused"


def try_landlock(orders: Orders) -> str:
    version = syscalls.landlock_version()
    if not version:
        raise Missing("this kernel has no landlock, or it is switched off")
    enter_world(orders)
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


def try_rlimits(orders: Orders) -> str:
    with open("/proc/sys/kernel/core_pattern") as file:
        pattern = file.read().strip()
    rlimits.set_common()
    namespaces.drop_capabilities()
    core_limit = resource.getrlimit(resource.RLIMIT_CORE)
    if core_limit != (1, 1) and (core_limit != (0, 0) or pattern.startswith("|")):
        raise Missing(f"core dumps go to {pattern!r}: the limit for them is {core_limit}, and only 1 stops them")
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard + 1))
    except (ValueError, OSError):
        return f"no core dumps, {hard} open files; a limit cannot be raised again"
    raise Missing("a limit could be raised again")
