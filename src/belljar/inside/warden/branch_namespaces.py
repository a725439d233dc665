"""Create the namespaces and directories of a branch, which an unprivileged copy of a live session can join.

Joining a mount namespace requires capabilities in the user namespace that owns it, and a session has none in the one it
runs in. But a process in the parent namespace that has the uid of a user namespace's creator has every capability over
it. So each branched session gets one user namespace for all of its branches, below its own and owned by its uid, and in
it every branch gets a mount, a network and an ipc namespace. A session can join these and nothing else;
`backends/local/pool/setns_gate.py` decides when it may.

A child of the warden creates them, in the pool's namespaces and outside every jail: it starts as root there, mounts the
fresh directories, changes to the session's uid and copies the parent's files as that uid. It does so in the cgroup of
the branch, which is charged for the files. It ends when it has sent descriptors of what it created.
"""

from __future__ import annotations

import os
import signal
import socket
import stat
from typing import Any

from belljar import channel
from belljar.jail import landlock, mounts, namespaces, policy, syscalls

#: One for each branched session; on an unprivileged server all sessions share one uid. Seccomp keeps guests from
#: creating any.
_NAMESPACES_PER_UID = 1024
_JOINED = syscalls.CLONE_NEWNS | syscalls.CLONE_NEWNET | syscalls.CLONE_NEWIPC
_NAMES = ("user", "mnt", "net", "ipc")
_DEPTH_MAX = 64
_COPIED_BYTES = 1 << 30
_is_allowed = False


def begin(order: dict[str, Any], descriptors: list[int]) -> int:
    """Fork the process that creates the namespaces of one branch; it reports to the host over `descriptors[0]`.

    `order` has `uid`, `disk_bytes` and `landlock_version`; `joined` says whether to join a user namespace, and `made`
    whether to create one below it. The descriptors are: the socket for the report, the pidfd of the jail's init, the
    parent's directories in the order of `policy.WRITABLE_DIRS`, the user namespace to join, if any, and the join files
    of the branch's cgroup.

    The report carries the user, mount, network and ipc namespaces, the directories, and a landlock ruleset for the
    branch unless the version is 0; or it says why the files could not be copied (`uncopied`) or what else `failed`.
    """
    global _is_allowed
    if not _is_allowed:
        namespaces.allow_user_namespaces(_NAMESPACES_PER_UID)
        _is_allowed = True
    pid = os.fork()
    if pid:
        return pid
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _make(order, descriptors)
    except BaseException as error:  # noqa: BLE001  (the end of the process: report why)
        _send(descriptors[0], {"failed": f"{type(error).__name__}: {error}"})
    finally:
        os._exit(0)


def _make(order: dict[str, Any], descriptors: list[int]) -> None:
    report, jail_init, *rest = descriptors
    count = len(policy.WRITABLE_DIRS)
    parents, rest = rest[:count], rest[count:]
    joined = [rest.pop(0)] if order["joined"] else []
    own = os.open("/proc/self/", os.O_PATH | os.O_DIRECTORY)
    for cgroup in rest:
        os.write(cgroup, b"0")
    syscalls.setns(jail_init, syscalls.CLONE_NEWNS)
    syscalls.unshare(syscalls.CLONE_NEWNS)
    mounts.mount_fresh_dirs(mounts.fresh_dir_options(order["disk_bytes"]))
    os.setresgid(order["uid"], order["uid"], order["uid"])
    os.setresuid(order["uid"], order["uid"], order["uid"])
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 1)
    for above in joined:
        syscalls.setns(above, syscalls.CLONE_NEWUSER)
        syscalls.prctl(syscalls.PR_SET_DUMPABLE, 1)
    if order["made"]:
        namespaces.own_user_namespace(own)
        syscalls.prctl(syscalls.PR_SET_DUMPABLE, 1)
    syscalls.unshare(_JOINED)
    namespaces.raise_loopback()
    fresh = [os.open(path, os.O_PATH | os.O_DIRECTORY) for path in policy.WRITABLE_DIRS]
    for source, path in zip(parents, policy.WRITABLE_DIRS):
        target = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            copy_tree(os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=source), target)
        except OSError as error:
            _send(report, {"uncopied": str(error)})
            return
    made = [os.open(f"ns/{name}", os.O_RDONLY, dir_fd=own) for name in _NAMES]
    version = order["landlock_version"]
    _send(report, {}, [*made, *fresh, *([landlock.shield(version)] if version else [])])


def _send(report: int, message: dict[str, Any], descriptors: list[int] | None = None) -> None:
    with socket.socket(fileno=os.dup(report)) as peer:
        channel.send(peer, message, descriptors=descriptors or [])


def copy_tree(source: int, target: int, depth: int = 0) -> None:
    """Copy the content of one open directory to another; sockets and devices are skipped, links copied as links."""
    if depth > _DEPTH_MAX:
        raise OSError("the work directory is nested too deeply")
    for name in os.listdir(source):
        facts = os.stat(name, dir_fd=source, follow_symlinks=False)
        if stat.S_ISDIR(facts.st_mode):
            os.mkdir(name, 0o700, dir_fd=target)
            below = [
                os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=each) for each in (source, target)
            ]
            copy_tree(below[0], below[1], depth + 1)
            for each in below:
                os.close(each)
        elif stat.S_ISREG(facts.st_mode):
            _copy_file(name, source, target)
        elif stat.S_ISLNK(facts.st_mode):
            os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)
            continue
        elif stat.S_ISFIFO(facts.st_mode):
            os.mkfifo(name, 0o600, dir_fd=target)
        else:
            continue
        os.chmod(name, stat.S_IMODE(facts.st_mode), dir_fd=target)
        os.utime(name, ns=(facts.st_atime_ns, facts.st_mtime_ns), dir_fd=target)


def _copy_file(name: str, source: int, target: int) -> None:
    read = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=source)
    write = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=target)
    try:
        while os.sendfile(write, read, None, _COPIED_BYTES):
            pass
    finally:
        os.close(read)
        os.close(write)
