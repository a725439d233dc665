"""The place of a branch: namespaces and directories that a copy of a live session can join though it has no rights.

A process that joins a mount namespace needs rights over the user namespace that owns it, and a session has none over
the one it lives in. But a process with the uid that made a user namespace, in the namespace above it, has every right
over it. So each session that is branched gets one small user namespace for all of its branches, below its own and owned
by its uid, and in it every branch a mount, a network and an ipc namespace. These it could join, and nothing else; when
it may is decided by `gate.py`.

A process of ours makes them, in the world of the guests and outside every jail: it is born root there, mounts the
fresh directories, becomes the family's uid, and copies the parent's files as that uid, in the cgroup of the branch, so
that what they take is counted there. It ends when it has handed over descriptors of what it made.
"""

from __future__ import annotations

import os
import signal
import socket
import stat
from typing import Any

from belljar import channel
from belljar.jail import landlock, mounts, namespaces, policy, syscalls

#: One for each session that was branched, and as a plain user all have one uid. Guests cannot make any: seccomp.
_NAMESPACES_PER_UID = 1024
_JOINED = syscalls.CLONE_NEWNS | syscalls.CLONE_NEWNET | syscalls.CLONE_NEWIPC
_NAMES = ("user", "mnt", "net", "ipc")
_DEPTH_MAX = 64
_COPIED_BYTES = 1 << 30
_is_allowed = False


def begin(order: dict[str, Any], descriptors: list[int]) -> int:
    """Fork the process that makes one place; it reports over the first of `descriptors` by itself.

    `order` has the family's `uid`, `disk_bytes`, and `landlock_version`; whether a user namespace is to be `joined`,
    and whether one is to be `made` below that. The descriptors: the socket to report over, the jail's jail_init, the
    parent's directories in the order of `policy.WRITABLE_DIRS`, the user namespace to be joined, if any, and the files
    by which to join the branch's cgroup.

    What is reported: user, mount, network and ipc namespace, the directories, and a landlock ruleset for the copy,
    unless the version is 0; or why the files could not be copied (`uncopied`), or anything else not be made (`failed`).
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
    except BaseException as error:  # noqa: BLE001  (the end of the process: say why)
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
            copy_tree(_readable(source), target)
        except OSError as error:
            _send(report, {"uncopied": str(error)})
            return
    made = [os.open(f"ns/{name}", os.O_RDONLY, dir_fd=own) for name in _NAMES]
    version = order["landlock_version"]
    _send(report, {}, [*made, *fresh, *([landlock.shield(version)] if version else [])])


def _readable(directory: int) -> int:
    return os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=directory)


def _send(report: int, message: dict[str, Any], descriptors: list[int] | None = None) -> None:
    with socket.socket(fileno=os.dup(report)) as peer:
        channel.send(peer, message, descriptors=descriptors or [])


def copy_tree(source: int, target: int, depth: int = 0) -> None:
    """Copy what one directory holds into another, both given open; sockets are left out, links are copied as links."""
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
