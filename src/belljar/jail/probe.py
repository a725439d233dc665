"""Which walls this machine can build, found out by building each one in a process that is then thrown away.

Asked from a fresh interpreter (`ask`), because most of these steps cannot be undone, and because what the asking
process holds, has loaded or has inherited must not colour the answer. The walls are put up by the same code that puts
them up around guests; what is added here is only the attempt to get through.
"""

from __future__ import annotations

import contextlib
import encodings.idna  # noqa: F401  addresses need it, once the interpreter's own files may be out of reach
import errno
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from belljar.jail import cgroups, landlock, limits, mounts, namespaces, policy, seccomp, syscalls
from belljar.jail.instance import INSTANCES_MAX

_START = "import sys; sys.path.insert(0, sys.argv[2]); from belljar.jail.probe import main; main(sys.argv[1])"
_ATTEMPT_SECONDS = 20.0
_ALL_SECONDS = 120.0
_MIB = 1024 * 1024

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


class ProbeFailed(Exception):
    """The probe itself did not come to its end; the message says what it printed."""


class Missing(Exception):
    """A wall went up and did not hold, or cannot be had; the message says what was seen."""


class Orders(NamedTuple):
    """What the attempts need to know."""

    uid_base: int
    cgroup_name: str

    @property
    def as_root(self) -> bool:
        """Whether we may map any id, as the warden does when root starts it."""
        return os.geteuid() == 0


class Wall(NamedTuple):
    """One row of the doctor's table. `waiver` is the name it can be given up by, if it can."""

    name: str
    waiver: str
    meaning: str
    attempt: Callable[[Orders], str]
    fix: Callable[[Orders], str]


def ask(uid_base: int, cgroup_parent: str) -> dict[str, Any]:
    """Probe this machine: `walls`, a list of rows, and `facts` about the kernel.

    Raises:
        ProbeFailed: no answer came.
    """
    sources = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    name = f"{cgroup_parent}/probe-{os.getpid()}"
    # The last instance's ids: the least likely to be in use by a server that runs right now.
    orders = json.dumps([uid_base + (INSTANCES_MAX - 1) * policy.UIDS_PER_INSTANCE, name])
    try:
        asked = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _START, orders, sources],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env={"LANG": "C.UTF-8"},
            cwd="/",
            timeout=_ALL_SECONDS,
            start_new_session=True,  # Ctrl-C is for the caller, who ends this one by leaving
        )
        answer: dict[str, Any] = json.loads(asked.stdout)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ProbeFailed(str(error)) from error
    except ValueError as error:
        said = asked.stderr.decode("utf-8", "replace").strip()
        raise ProbeFailed(f"exit code {asked.returncode}: {said or 'it said nothing'}") from error
    finally:
        _remove_cgroups(name)
    return answer


def _remove_cgroups(name: str) -> None:
    """Normally there are none left; a probe that was killed could not remove its own."""
    with contextlib.suppress(cgroups.CgroupsUnavailable, OSError):
        left = [f"{each.path}/{name}" for each in cgroups.find_hierarchies()]
        cgroups.remove_trees([path for path in left if os.path.exists(path)], deadline_seconds=5.0)


def main(orders_text: str) -> None:
    """Try every wall and print the answer as JSON."""
    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
    orders = Orders(*json.loads(orders_text))
    print(json.dumps({"walls": [_try(wall, orders) for wall in WALLS], "facts": _facts()}))


def _try(wall: Wall, orders: Orders) -> dict[str, str]:
    seen, stands = _in_child(wall.attempt, orders)
    return {
        "name": wall.name,
        "waiver": wall.waiver,
        "state": "ok" if stands else "missing",
        "seen": seen,
        "meaning": wall.meaning,
        "fix": "" if stands else wall.fix(orders),
    }


def _in_child(attempt: Callable[[Orders], str], orders: Orders) -> tuple[str, bool]:
    """Run one attempt in a child, which may go on in children of its own; the last one of them reports."""
    answer, report = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        _die_with_parent()
        try:
            outcome = [attempt(orders), True]
        except (OSError, Missing, ValueError) as error:
            outcome = [str(error), False]
        except cgroups.CgroupsUnavailable as error:
            outcome = [str(error).partition(";")[0], False]  # what follows is advice, of which `fix` has its own
        except BaseException as error:
            outcome = [f"{type(error).__name__}: {error}", False]
        os.write(report, json.dumps(outcome).encode())
        os._exit(0)
    os.close(report)
    try:
        text = _read_until_closed(answer, _ATTEMPT_SECONDS)
    finally:
        os.close(answer)
        os.kill(pid, signal.SIGKILL)  # not reaped yet, so it is still this one; its children follow
        os.waitpid(pid, 0)
    if not text:
        return "the attempt gave no answer", False
    seen, stands = json.loads(text)
    return seen, stands


def _read_until_closed(descriptor: int, seconds: float) -> bytes:
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    text = b""
    while waiting.poll(seconds * 1000):
        chunk = os.read(descriptor, 65536)
        if not chunk:
            return text
        text += chunk
    return b""


def _die_with_parent() -> None:
    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)


def _go_on_in_child() -> None:
    """Return in a new child only; this process waits for it and ends."""
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
        os._exit(0)
    _die_with_parent()


def _enter_user_namespace(orders: Orders) -> None:
    """Own a user namespace as the warden does: as root with a range of ids that are nobody's."""
    if not orders.as_root:
        namespaces.enter_as_plain_user(policy.GUEST_UID_FIRST)
        return
    me = int(os.readlink("/proc/self"))  # what this /proc calls us, whatever our own pid namespace does
    left, leave = os.pipe2(os.O_CLOEXEC)
    mapper = os.fork()
    if mapper == 0:
        os.close(leave)
        os.read(left, 1)
        try:
            namespaces.map_range(me, orders.uid_base, policy.UIDS_PER_INSTANCE)
            os._exit(0)
        finally:
            os._exit(1)
    try:
        syscalls.unshare(syscalls.CLONE_NEWUSER)
    finally:
        os.close(leave)
        os.close(left)
        _, status = os.waitpid(mapper, 0)
    if status:
        raise Missing("the ids of a new user namespace cannot be mapped")
    namespaces.become_mapped_root()
    _die_with_parent()


def _enter_world(orders: Orders) -> None:
    """Be the first process of a root, pid and user namespace like those that guests live in."""
    if not orders.as_root:
        _enter_user_namespace(orders)
    syscalls.unshare(syscalls.CLONE_NEWPID)
    _go_on_in_child()
    syscalls.unshare(syscalls.CLONE_NEWNS)
    mounts.build_root(bound={}, hidden=[], guest_uids=[policy.GUEST_UID_FIRST], code={})
    if orders.as_root:
        _enter_user_namespace(orders)
        syscalls.unshare(syscalls.CLONE_NEWNS)


def _status() -> dict[str, str]:
    with open("/proc/self/status") as file:
        return dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)


def _must_fail(what: str, expected: int, call: Callable[..., Any], *arguments: Any) -> None:
    try:
        call(*arguments)
    except OSError as error:
        if error.errno == expected:
            return
        raise Missing(
            f"{what} failed with {errno.errorcode.get(error.errno or 0)}, not {errno.errorcode[expected]}"
        ) from None
    raise Missing(f"{what} was possible")


# ---- namespaces


def _change_namespace(orders: Orders, flag: int, kind: str) -> None:
    _enter_user_namespace(orders)
    before = os.readlink(f"/proc/self/ns/{kind}")
    syscalls.unshare(flag)
    if os.readlink(f"/proc/self/ns/{kind}") == before:
        raise Missing("the kernel said yes and changed nothing")


def _try_user(orders: Orders) -> str:
    before = os.readlink("/proc/self/ns/user")
    _enter_user_namespace(orders)
    if os.readlink("/proc/self/ns/user") == before:
        raise Missing("the kernel said yes and changed nothing")
    with open("/proc/self/uid_map") as file:
        inner, outer, count = file.read().split()
    return f"id {inner} inside is {outer} outside, {count} in all"


def _try_pid(orders: Orders) -> str:
    _enter_user_namespace(orders)
    syscalls.unshare(syscalls.CLONE_NEWPID)
    _go_on_in_child()
    if os.getpid() != 1:
        raise Missing(f"the first process of a new pid namespace is number {os.getpid()}")
    return "processes are counted anew, from 1"


def _try_mount(orders: Orders) -> str:
    _change_namespace(orders, syscalls.CLONE_NEWNS, "mnt")
    syscalls.mount(b"none", b"/", b"", syscalls.MS_REC | syscalls.MS_PRIVATE)
    syscalls.mount(b"none", b"/tmp", b"tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV)
    return "a file system mounted inside is not seen outside"


def _try_ipc(orders: Orders) -> str:
    _change_namespace(orders, syscalls.CLONE_NEWIPC, "ipc")
    return "queues, semaphores and shared memory of its own"


def _try_uts(orders: Orders) -> str:
    _change_namespace(orders, syscalls.CLONE_NEWUTS, "uts")
    socket.sethostname(policy.HOSTNAME)
    return f"the host is called {socket.gethostname()} inside"


def _try_net(orders: Orders) -> str:
    _change_namespace(orders, syscalls.CLONE_NEWNET, "net")
    # The kernel adds inert fallback devices (sit0, tunl0, …) to every namespace where their modules are loaded.
    namespaces.raise_loopback()
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname(), timeout=2.0).close()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as outward:
        _must_fail("sending to the outside", errno.ENETUNREACH, outward.connect, ("192.0.2.1", 9))
    return "a loopback of its own and no way out"


def _try_cgroup_namespace(orders: Orders) -> str:
    _change_namespace(orders, syscalls.CLONE_NEWCGROUP, "cgroup")
    with open("/proc/self/cgroup") as file:
        shown = {line.rstrip("\n").split(":", 2)[2] for line in file}
    if shown - {"/"}:
        raise Missing(f"names of the host's cgroups are still seen: {', '.join(sorted(shown))}")
    return "the names of the host's cgroups are not seen"


# ---- files


def _try_root(orders: Orders) -> str:
    outside = set(os.listdir("/"))
    _enter_world(orders)
    for path in ("/", "/etc", "/usr"):
        _must_fail(f"making a file in {path}", errno.EROFS, os.open, f"{path}/probe", os.O_CREAT | os.O_WRONLY, 0o600)
    hidden = sorted(outside - set(os.listdir("/")))
    return f"read-only and built from a list; not in it: {', '.join(hidden) or 'nothing'}"


def _try_proc(orders: Orders) -> str:
    _enter_world(orders)
    syscalls.unshare(syscalls.CLONE_NEWPID | syscalls.CLONE_NEWNS)
    _go_on_in_child()
    mounts.mount_proc()
    others = [name for name in os.listdir("/proc") if not name.isdigit() and name not in ("self", "thread-self")]
    if others:
        raise Missing(f"/proc shows more than processes: {', '.join(sorted(others)[:5])}")
    with open("/proc/self/mountinfo") as file:
        options = [line.rsplit(" ", 1)[1] for line in file if " /proc " in line][-1]
    if "hidepid=invisible" not in options:
        raise Missing(f"/proc was mounted without hidepid: {options.strip()}")
    return "hidepid=invisible, subset=pid: one's own processes and nothing else"


def _try_fresh_dirs(orders: Orders) -> str:
    _enter_world(orders)
    mounts.mount_fresh_dirs(mounts.fresh_dir_options(_MIB))
    for directory in policy.WRITABLE_DIRS:
        _fill_with_bytes(f"{directory}/large")
        _fill_with_files(directory)
    return f"{', '.join(policy.WRITABLE_DIRS)}: new for each program, limited in bytes and in files"


def _fill_with_bytes(path: str) -> None:
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)
    written = 0
    with contextlib.suppress(OSError):
        while written <= 2 * _MIB:
            written += os.write(descriptor, bytes(65536))
    os.close(descriptor)
    os.unlink(path)
    if written > _MIB:
        raise Missing(f"{path} took {written} bytes where {_MIB} are allowed")


def _fill_with_files(directory: str) -> None:
    allowed = _MIB // policy.BYTES_PER_INODE
    for number in range(allowed + 1):
        try:
            os.close(os.open(f"{directory}/{number}", os.O_CREAT | os.O_WRONLY, 0o600))
        except OSError:
            return
    raise Missing(f"{directory} took more than the {allowed} files allowed")


def _try_open_beneath(orders: Orders) -> str:
    _enter_world(orders)
    mounts.mount_fresh_dirs(mounts.fresh_dir_options(_MIB))
    os.symlink("/etc/passwd", "/work/link")
    root = os.open("/work", os.O_PATH | os.O_DIRECTORY)
    _must_fail("following a link", errno.ELOOP, syscalls.open_beneath, root, "link", os.O_RDONLY)
    _must_fail("leaving by '..'", errno.EXDEV, syscalls.open_beneath, root, "../etc/passwd", os.O_RDONLY)
    return "openat2 follows no link and no '..' out of the work directory"


# ---- rights


def _try_uid(orders: Orders) -> str:
    if not orders.as_root:
        raise Missing(f"programs would have your own uid, {os.geteuid()}")
    taken = _owners(orders.uid_base - (INSTANCES_MAX - 1) * policy.UIDS_PER_INSTANCE)
    if taken:
        raise Missing(f"the uids set aside for programs belong to somebody: {', '.join(taken)}")
    _enter_user_namespace(orders)
    os.setresgid(policy.GUEST_UID_FIRST, policy.GUEST_UID_FIRST, policy.GUEST_UID_FIRST)
    os.setresuid(policy.GUEST_UID_FIRST, policy.GUEST_UID_FIRST, policy.GUEST_UID_FIRST)
    if int(_status()["CapEff"], 16):
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


def _try_capabilities(orders: Orders) -> str:
    _enter_user_namespace(orders)
    syscalls.unshare(syscalls.CLONE_NEWUTS)
    namespaces.drop_bounding_set()
    namespaces.drop_capabilities()
    held = {name: value for name, value in _status().items() if name.startswith("Cap") and int(value, 16)}
    if held:
        raise Missing(f"some are left: {held}")
    _must_fail("naming the host", errno.EPERM, socket.sethostname, policy.HOSTNAME)
    return "none left in any of the five sets"


def _try_no_new_privs(orders: Orders) -> str:
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    if _status().get("NoNewPrivs") != "1":
        raise Missing("the kernel said yes and changed nothing")
    return "NoNewPrivs is 1"


def _try_seccomp(orders: Orders) -> str:
    machine = os.uname().machine
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    for program in (seccomp.compile_entrance(machine), seccomp.compile_closing(machine)):
        syscalls.install_seccomp(syscalls.FilterProgram(program))
    if _status().get("Seccomp") != "2":
        raise Missing("the kernel said yes and changed nothing")
    _must_fail("a new user namespace", errno.EPERM, syscalls.unshare, syscalls.CLONE_NEWUSER)
    return f"the allow-list for {machine} is in force; unshare is refused"


def _try_landlock(orders: Orders) -> str:
    version = syscalls.landlock_version()
    if not version:
        raise Missing("this kernel has no landlock, or it is switched off")
    _enter_world(orders)
    mounts.mount_fresh_dirs(mounts.fresh_dir_options(_MIB))
    _go_on_in_child()
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    landlock.restrict(version, (policy.WORK_DIR,), "/dev")
    os.close(os.open("/work/probe", os.O_CREAT | os.O_WRONLY, 0o600))
    _must_fail("making a file in /tmp", errno.EACCES, os.open, "/tmp/probe", os.O_CREAT | os.O_WRONLY, 0o600)
    if version >= 6:
        _must_fail("a signal to a process outside", errno.EPERM, os.kill, os.getppid(), 0)
    gives = ", ".join(text for since, text in _LANDLOCK_GIVES.items() if since <= version)
    return f"ABI {version}: {gives}"


def _try_rlimits(orders: Orders) -> str:
    limits.set_common()
    namespaces.drop_capabilities()
    if resource.getrlimit(resource.RLIMIT_CORE) != (0, 0):
        raise Missing("core dumps are still allowed")
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard + 1))
    except (ValueError, OSError):
        return f"no core dumps, {hard} open files; a limit cannot be raised again"
    raise Missing("a limit could be raised again")


# ---- resources


@contextlib.contextmanager
def _cgroup_cell(orders: Orders) -> Iterator[tuple[cgroups.CellCgroup, list[cgroups.Hierarchy]]]:
    group = cgroups.Cgroups(cgroups.find_hierarchies(), orders.cgroup_name)
    try:
        group.open()
        cell = group.cell(0)
        try:
            yield cell, group.hierarchies
        finally:
            cell.close()
    finally:
        group.close()


def _run_in_cell(cell: cgroups.CellCgroup, work: Callable[[], int]) -> int:
    """The wait status of a child that joins the cell and does some work there."""
    cell.begin()
    pid = os.fork()
    if pid == 0:
        _die_with_parent()
        try:
            for procs in cell.join_files:
                os.write(procs, b"0")
            os._exit(work())
        finally:
            os._exit(125)
    return os.waitpid(pid, 0)[1]


def _where(hierarchies: list[cgroups.Hierarchy], controller: str) -> str:
    held = next(each for each in hierarchies if controller in each.controllers)
    return f"version {held.version}, below {held.path}"


def _try_memory(orders: Orders) -> str:
    with _cgroup_cell(orders) as (cell, hierarchies):
        cell.limit(32 * _MIB, 8)
        status = _run_in_cell(cell, lambda: len(b"x" * (128 * _MIB)) and 0)
        if not (os.WIFSIGNALED(status) and cell.oom_kills()):
            raise Missing("a process went over its memory limit and lived")
        return _where(hierarchies, "memory")


def _try_processes(orders: Orders) -> str:
    def fork_until_refused() -> int:
        started = []
        try:
            for _ in range(8):
                pid = os.fork()
                if pid == 0:
                    _die_with_parent()
                    signal.pause()
                started.append(pid)
        except OSError:
            return 42
        finally:
            for pid in started:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        return 0

    with _cgroup_cell(orders) as (cell, hierarchies):
        cell.limit(64 * _MIB, 4)
        status = _run_in_cell(cell, fork_until_refused)
        if os.waitstatus_to_exitcode(status) != 42:
            raise Missing("a program could start more processes than its limit")
        return _where(hierarchies, "pids")


def _try_cpu(orders: Orders) -> str:
    def burn() -> int:
        while os.times().user + os.times().system < 0.05:
            pass
        return 0

    with _cgroup_cell(orders) as (cell, hierarchies):
        cell.limit(64 * _MIB, 4)
        _run_in_cell(cell, burn)
        if cell.cpu_seconds() < 0.03:
            raise Missing("CPU time is not counted")
        return _where(hierarchies, "cpuacct")


def _try_kill(orders: Orders) -> str:
    """A daemon that left its session and ignores what can be ignored must end with the first process."""
    alive, held = os.pipe2(os.O_CLOEXEC)
    _enter_user_namespace(orders)
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
    with contextlib.suppress(cgroups.CgroupsUnavailable, OSError), _cgroup_cell(orders) as (cell, _):
        if cell.kill_file is not None:
            return ", and cgroup.kill"
    return ""


# ---- how to get what is missing


def _fix_user_namespace(orders: Orders) -> str:
    found = _sysctls()
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


WALLS = (
    Wall("user namespace", "", "rights inside are rights over nothing outside", _try_user, _fix_user_namespace),
    Wall("pid namespace", "", "no sight of other processes, no signals to them", _try_pid, _fix_namespace),
    Wall("mount namespace", "", "a file tree of its own", _try_mount, _fix_namespace),
    Wall("ipc namespace", "", "no queues or memory shared with others", _try_ipc, _fix_namespace),
    Wall("uts namespace", "", "the host's name is not seen", _try_uts, _fix_namespace),
    Wall("net namespace", "", "no network", _try_net, _fix_namespace),
    Wall("cgroup namespace", "", "the host's layout is not seen", _try_cgroup_namespace, _fix_namespace),
    Wall("root directory", "", "no file of the host but those it needs, none to change", _try_root, _fix_root),
    Wall("/proc", "", "nothing about the host or other programs", _try_proc, _fix_root),
    Wall("writable directories", "", "a program cannot fill the disk or leave files", _try_fresh_dirs, _fix_root),
    Wall("artifacts", "", "a link planted by a program leads nowhere", _try_open_beneath, _fix_root),
    Wall("uid", "uid", "no file or process outside is its own", _try_uid, _fix_uid),
    Wall("capabilities", "", "no privileged operation", _try_capabilities, _fix_kernel),
    Wall("no_new_privs", "", "no rights gained from setuid programs", _try_no_new_privs, _fix_kernel),
    Wall("seccomp", "", "no system call beyond the list", _try_seccomp, _fix_kernel),
    Wall("landlock", "landlock", "a second opinion on files and signals", _try_landlock, _fix_landlock),
    Wall("rlimits", "", "no core dumps, few descriptors", _try_rlimits, _fix_kernel),
    Wall("cgroup memory", "cgroup", "memory of all its processes together", _try_memory, _fix_cgroup),
    Wall("cgroup pids", "cgroup", "no fork bomb", _try_processes, _fix_cgroup),
    Wall("cgroup cpu", "cgroup", "CPU time of all its processes together", _try_cpu, _fix_cgroup),
    Wall("kill", "", "nothing survives its program", _try_kill, _fix_kernel),
)


def _facts() -> dict[str, Any]:
    kernel = os.uname()
    pages = os.sysconf("SC_PHYS_PAGES")
    return {
        "kernel": kernel.release,
        "machine": kernel.machine,
        "python": sys.version.split()[0],
        "uid": os.geteuid(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": pages * resource.getpagesize(),
        "swap_bytes": _swap_bytes(),
        "open_files_max": resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        "sysctls": _sysctls(),
    }


def _swap_bytes() -> int:
    with contextlib.suppress(OSError), open("/proc/meminfo") as file:
        for line in file:
            if line.startswith("SwapTotal:"):
                return int(line.split()[1]) * 1024
    return 0


def _sysctls() -> dict[str, str]:
    """Those that exist here, by name."""
    found = {}
    for name in _SYSCTLS:
        with contextlib.suppress(OSError), open(f"/proc/sys/{name.replace('.', '/')}") as file:
            found[name] = file.read().strip()
    return found
