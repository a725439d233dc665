"""Run an attempt in a child process, in namespaces and a root directory like those of guests."""

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

#: Opening files and sockets needs these codecs when the interpreter's own files may be hidden, so they are loaded now.
_CODECS_LOADED = (encodings.ascii, encodings.idna)

_ATTEMPT_SECONDS = 20.0
MIB = 1024 * 1024


class Missing(Exception):
    """A wall did not hold or could not be put up; the message says what happened."""


class ProbeConfig(NamedTuple):
    uid_base: int
    cgroup_name: str

    @property
    def as_root(self) -> bool:
        return os.geteuid() == 0


def in_child(attempt: Callable[[ProbeConfig], str], config: ProbeConfig) -> tuple[str, bool]:
    """Run an attempt in a child; return what it saw or why it failed, and whether the wall holds.

    The attempt may continue in children of its own (`go_on_in_child`); the last of them reports.
    """
    answer, report = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        die_with_parent()
        try:
            outcome = [attempt(config), True]
        except (OSError, Missing, ValueError) as error:
            outcome = [str(error), False]
        except cgroups.CgroupsUnavailable as error:
            outcome = [str(error).partition(";")[0], False]  # without the advice, since the row has its own in `fix`
        except BaseException as error:  # noqa: BLE001  (the end of this process: it must report something)
            outcome = [f"{type(error).__name__}: {error}", False]
        os.write(report, json.dumps(outcome).encode())
        os._exit(0)
    os.close(report)
    try:
        text = _read_until_closed(answer, _ATTEMPT_SECONDS)
    finally:
        os.close(answer)
        os.kill(pid, signal.SIGKILL)  # not reaped yet, so the pid is not reused; its children end with it
        os.waitpid(pid, 0)
    if not text:
        return "the attempt reported nothing", False
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
    """Fork, and return in the child only; the parent waits for it and exits."""
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
        os._exit(0)
    die_with_parent()


def enter_user_namespace(config: ProbeConfig) -> None:
    """Enter a user namespace as the warden does: as root with a range of unused ids."""
    if not config.as_root:
        namespaces.enter_as_plain_user(policy.GUEST_UID_FIRST)
        return
    me = int(os.readlink("/proc/self"))  # the pid in this /proc, which may belong to another pid namespace
    left, leave = os.pipe2(os.O_CLOEXEC)
    mapper = os.fork()
    if mapper == 0:
        os.close(leave)
        os.read(left, 1)
        try:
            namespaces.map_range(me, config.uid_base, policy.UIDS_PER_INSTANCE)
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
        raise Missing("the ids of a new user namespace could not be mapped")
    namespaces.become_mapped_root()
    die_with_parent()


def enter_guest_root(config: ProbeConfig) -> None:
    """Become the first process of a pid namespace, in a root directory and user namespace like those of guests."""
    if not config.as_root:
        enter_user_namespace(config)
    syscalls.unshare(syscalls.CLONE_NEWPID)
    go_on_in_child()
    syscalls.unshare(syscalls.CLONE_NEWNS)
    mounts.build_root(bound={}, hidden=[], guest_uids=[policy.GUEST_UID_FIRST], code={})
    if config.as_root:
        enter_user_namespace(config)
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
