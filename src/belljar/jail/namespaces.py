"""Namespaces: user namespaces with their id maps and limits, the loopback interface, and dropping capabilities."""

from __future__ import annotations

import _socket
import os
import struct

from belljar.jail import syscalls

LAST_CAPABILITY = 63
_SHARES = 64  # each jail gets at most this fraction of what the kernel counts for all jails of a pool together
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 0x1


def map_range(pid: int, first_host_uid: int, count: int) -> None:
    """Map the first `count` ids of the user namespace of `pid` to a range of host ids; requires root on the host."""
    for kind in ("gid", "uid"):
        _write(f"/proc/{pid}/{kind}_map", f"0 {first_host_uid} {count}")


def become_mapped_root() -> None:
    """Become id 0 of the user namespace just mapped, which is an unused id on the host."""
    os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)


def enter_as_plain_user(inner_id: int) -> None:
    """Enter a user namespace in which the caller has the id `inner_id` and every capability, kept across exec.

    Without root a user can only map their own id. Guests therefore share the host uid of the user who started the
    server: the wall 'uid' is missing.
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
    """Limit what the kernel counts per uid: guests create no user namespaces and do not use up inotify for others.

    Inotify is counted twice: for the guest's uid, and for all guests together against the host's limit for one user.
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
    """Return one jail's part of a limit of the host, so that `_SHARES` jails together use it up."""
    try:
        with open(path) as file:
            return max(1, min(most, int(file.read()) // _SHARES))
    except (OSError, ValueError):
        return 1


def allow_user_namespaces(count: int) -> None:
    """Let each uid own `count` user namespaces; seccomp keeps guests from creating any themselves."""
    path = "/proc/sys/user/max_user_namespaces"
    if os.path.exists(path):
        _write(path, str(count))


def can_count_apart() -> bool:
    """Whether the kernel counts processes per uid and user namespace, as it does since Linux 5.14."""
    major, minor = os.uname().release.split(".")[:2]
    return (int(major), int("".join(filter(str.isdigit, minor)) or 0)) >= (5, 14)


def own_user_namespace(own: int) -> None:
    """Enter a new user namespace that maps only the caller's uid and gid; `own` is its /proc/self, already open."""
    uid, gid = os.geteuid(), os.getegid()
    syscalls.unshare(syscalls.CLONE_NEWUSER)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(os.open(name, os.O_WRONLY, dir_fd=own), "w") as file:
            file.write(text)


def drop_bounding_set() -> None:
    """Let no exec from now on gain a capability; the caller keeps those it holds."""
    for capability in range(LAST_CAPABILITY + 1):
        try:
            syscalls.prctl(syscalls.PR_CAPBSET_DROP, capability)
        except OSError:
            return  # this kernel knows no further capability


def drop_capabilities() -> None:
    """Drop every capability of this thread, in every set."""
    syscalls.prctl(syscalls.PR_CAP_AMBIENT, syscalls.PR_CAP_AMBIENT_CLEAR_ALL)
    syscalls.set_capabilities(0, inheritable=0)


def raise_loopback() -> None:
    """Bring up the interface `lo` of the current network namespace."""
    import fcntl  # imported here, because the zygote never calls this

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
