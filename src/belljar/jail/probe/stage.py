"""Where an attempt takes place: children that are thrown away, in namespaces and a root like those of guests."""

from __future__ import annotations

import encodings.ascii
import encodings.idna
import errno
import json
import os
import select
import signal
from collections.abc import Callable
from typing import Any, NamedTuple

from belljar.jail import cgroups, mounts, namespaces, policy, syscalls

#: Files and addresses need these when the interpreter's own files may be out of reach: named here, they are loaded now.
_CODECS_LOADED = (encodings.ascii, encodings.idna)

_ATTEMPT_SECONDS = 20.0
MIB = 1024 * 1024


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


def in_child(attempt: Callable[[Orders], str], orders: Orders) -> tuple[str, bool]:
    """Run one attempt in a child, which may go on in children of its own; the last one of them reports."""
    answer, report = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        die_with_parent()
        try:
            outcome = [attempt(orders), True]
        except (OSError, Missing, ValueError) as error:
            outcome = [str(error), False]
        except cgroups.CgroupsUnavailable as error:
            outcome = [str(error).partition(";")[0], False]  # what follows is advice, of which `fix` has its own
        except BaseException as error:  # noqa: BLE001  the end of this process: it must still give an answer
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


def die_with_parent() -> None:
    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)


def go_on_in_child() -> None:
    """Return in a new child only; this process waits for it and ends."""
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
        os._exit(0)
    die_with_parent()


def enter_user_namespace(orders: Orders) -> None:
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
    die_with_parent()


def enter_world(orders: Orders) -> None:
    """Be the first process of a root, pid and user namespace like those that guests live in."""
    if not orders.as_root:
        enter_user_namespace(orders)
    syscalls.unshare(syscalls.CLONE_NEWPID)
    go_on_in_child()
    syscalls.unshare(syscalls.CLONE_NEWNS)
    mounts.build_root(bound={}, hidden=[], guest_uids=[policy.GUEST_UID_FIRST], code={})
    if orders.as_root:
        enter_user_namespace(orders)
        syscalls.unshare(syscalls.CLONE_NEWNS)


def read_status() -> dict[str, str]:
    with open("/proc/self/status") as file:
        return dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)


def must_fail(what: str, expected: int, call: Callable[..., Any], *arguments: Any) -> None:
    try:
        call(*arguments)
    except OSError as error:
        if error.errno == expected:
            return
        raise Missing(
            f"{what} failed with {errno.errorcode.get(error.errno or 0)}, not {errno.errorcode[expected]}"
        ) from None
    raise Missing(f"{what} was possible")
