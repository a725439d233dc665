"""User namespaces and their maps, the loopback of a network namespace, and giving up every capability."""

from __future__ import annotations

import _socket
import os
import struct

from belljar.jail import syscalls

LAST_CAPABILITY = 63
_SHARES = 64  # of what the kernel counts for all jails of a world together
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 0x1


def map_range(pid: int, first_host_uid: int, count: int) -> None:
    """Map ids 0…count of the user namespace of `pid` to a range of host ids. Needs root outside of it."""
    for kind in ("gid", "uid"):
        _write(f"/proc/{pid}/{kind}_map", f"0 {first_host_uid} {count}")


def become_mapped_root() -> None:
    """Take id 0 of the user namespace just mapped: a host id that is nobody's."""
    os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)


def enter_as_plain_user(inner_id: int) -> None:
    """A user namespace in which the calling user has one id and every capability, kept over exec.

    Without root only one's own id can be mapped, so guests share the host uid of whoever started us: that is the
    missing wall 'uid'.
    """
    uid, gid = os.geteuid(), os.getegid()
    syscalls.unshare(syscalls.CLONE_NEWUSER)
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{inner_id} {uid} 1")
    _write("/proc/self/gid_map", f"{inner_id} {gid} 1")
    held = syscalls.permitted_capabilities()
    syscalls.set_capabilities(held, inheritable=held)
    for capability in range(LAST_CAPABILITY + 1):
        if held >> capability & 1:
            syscalls.prctl(syscalls.PR_CAP_AMBIENT, syscalls.PR_CAP_AMBIENT_RAISE, capability)


def limit_user_namespace() -> None:
    """Limit what the kernel counts for each uid: no guest makes a user namespace, or uses up the share of others.

    Watchers are counted twice: for the guest's uid, and for all guests together against what the host allows one user.
    """
    limits = {
        "max_user_namespaces": 0,
        "max_inotify_instances": _share("/proc/sys/fs/inotify/max_user_instances", 16),
        "max_inotify_watches": _share("/proc/sys/fs/inotify/max_user_watches", 8192),
    }
    for name, most in limits.items():
        path = f"/proc/sys/user/{name}"
        if os.path.exists(path):
            _write(path, str(most))


def _share(path: str, most: int) -> int:
    """What one jail gets of a limit, so that it takes `_SHARES` of them to use it up."""
    try:
        with open(path) as file:
            return max(1, min(most, int(file.read()) // _SHARES))
    except (OSError, ValueError):
        return 1


def allow_user_namespaces(count: int) -> None:
    """Let each uid in here own so many; seccomp keeps guests from making any themselves."""
    path = "/proc/sys/user/max_user_namespaces"
    if os.path.exists(path):
        _write(path, str(count))


def can_count_apart() -> bool:
    """Whether the kernel counts processes for each uid of each user namespace, as it does since Linux 5.14."""
    major, minor = os.uname().release.split(".")[:2]
    return (int(major), int("".join(filter(str.isdigit, minor)) or 0)) >= (5, 14)


def own_user_namespace(own: int) -> None:
    """Leave for a user namespace that only the caller's uid owns and has a place in; `own` is its /proc/self, open."""
    uid, gid = os.geteuid(), os.getegid()
    syscalls.unshare(syscalls.CLONE_NEWUSER)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(os.open(name, os.O_WRONLY, dir_fd=own), "w") as file:
            file.write(text)


def drop_bounding_set() -> None:
    """No exec from here on can gain a capability. What the caller holds now it keeps."""
    for capability in range(LAST_CAPABILITY + 1):
        try:
            syscalls.prctl(syscalls.PR_CAPBSET_DROP, capability)
        except OSError:
            return  # past the last capability this kernel knows


def drop_capabilities() -> None:
    """Give up every capability this thread holds, in every set."""
    syscalls.prctl(syscalls.PR_CAP_AMBIENT, syscalls.PR_CAP_AMBIENT_CLEAR_ALL)
    syscalls.set_capabilities(0, inheritable=0)


def raise_loopback() -> None:
    """Bring up `lo` of the current network namespace."""
    import fcntl  # here, since the warm process never comes by

    any_socket = _socket.socket(_socket.AF_INET, _socket.SOCK_DGRAM)
    try:
        name = b"lo".ljust(16, b"\0")
        answer = fcntl.ioctl(any_socket, _SIOCGIFFLAGS, name + bytes(24))
        (flags,) = struct.unpack_from("=H", answer, 16)
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, name + struct.pack("=H", flags | _IFF_UP) + bytes(22))
    finally:
        any_socket.close()


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)
