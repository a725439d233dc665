"""A live session copies itself: it forks, and the copy moves into the place that was made for it.

The session and its copy share nothing that either could change: the copy has mounts, network, shared memory, pipes and
a channel of its own, and opens its files anew by their names. What cannot be copied so is refused before the fork.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` converts to enums, and each conversion touches pages
import ctypes
import fcntl
import os
import random
import re
import struct
import sys
from typing import Any

_CLONE_NEWUSER, _CLONE_NEWNS, _CLONE_NEWNET, _CLONE_NEWIPC = 0x10000000, 0x20000, 0x40000000, 0x8000000
_JOINED = (_CLONE_NEWNS, _CLONE_NEWNET, _CLONE_NEWIPC)
_OWN = ("/work", "/tmp", "/dev/shm")
_DELETED = " (deleted)"
_PR_SET_DUMPABLE = 4
_SIGCHLD = int(_signal.SIGCHLD)
_KEPT_CAPABILITIES = 1 << 21 | 1 << 18  # CAP_SYS_ADMIN and CAP_SYS_CHROOT: to join the places of further branches
_CAPABILITY_VERSION_3 = 0x20080522
_LANDLOCK_CREATE_RULESET, _LANDLOCK_RESTRICT_SELF = 444, 446
_SCOPE_ABSTRACT_SOCKET, _SCOPE_SIGNAL = 1, 2
_KEPT_FLAGS = os.O_ACCMODE | os.O_APPEND | os.O_NONBLOCK | os.O_DIRECTORY | os.O_PATH | os.O_SYNC

_libc = ctypes.CDLL(None, use_errno=True)
_forgotten: list[Any] = []  # event loops of the original: to close one here would change it there


#: A mapping that a fork does not copy, of a file that the copy shall have its own of, or of memory that has no name.
_SHARED = re.compile(rb"^\S+ ...s \S+ \S+ \S+ +((?:/work|/tmp|/dev/shm|/dev/zero|/SYSV)[^\n]*)", re.MULTILINE)


class Refused(Exception):
    """The state cannot be copied; the message says why."""


class OpenFile:
    """A file the program has open on a file system that the copy will have its own of."""

    def __init__(self, descriptor: int, path: str) -> None:
        self.descriptor = descriptor
        self.path = path
        self.flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        self.is_inherited = os.get_inheritable(descriptor)

    def reopen(self) -> None:
        """Put the copy's file in the place of the original's, at the same position."""
        fresh = os.open(self.path, self.flags & _KEPT_FLAGS)
        if not self.flags & (os.O_PATH | os.O_DIRECTORY):
            try:
                os.lseek(fresh, os.lseek(self.descriptor, 0, os.SEEK_CUR), os.SEEK_SET)
            except OSError:
                pass  # a named pipe has no position
        os.dup2(fresh, self.descriptor, self.is_inherited)
        os.close(fresh)


def look_around() -> list[OpenFile]:
    """What is open on the directories of the session.

    Raises:
        Refused: something is shared in a way that no copy can undo.
    """
    shared = _SHARED.search(_read("/proc/self/maps"))
    if shared is not None:
        raise Refused(f"memory is shared through {os.fsdecode(shared.group(1))}; close it first")
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            path = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue  # the listing's own
        if not path.startswith(tuple(f"{each}/" for each in _OWN)) and path not in _OWN:
            continue
        if path.endswith(_DELETED):
            raise Refused(f"the deleted file {path[: -len(_DELETED)]} is open; close it first")
        found.append(OpenFile(int(name), path))
    return found


def _read(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY)
    pieces: list[bytes] = []
    while pieces[-1:] != [b""]:
        pieces.append(os.read(descriptor, 1 << 20))
    os.close(descriptor)
    return b"".join(pieces)


def fork_orphan() -> bool:
    """Fork so that the copy has no parent but the first process of the cell; True in the copy.

    The program must see neither a child nor a signal of one.
    """
    handler = _signal.signal(_SIGCHLD, _signal.SIG_DFL)
    try:
        pid = os.fork()
        if pid == 0:
            try:
                pid = os.fork()
            except OSError:
                os._exit(1)
            if pid:
                os._exit(0)
            return True
        if os.waitpid(pid, 0)[1]:
            raise Refused("the limit of processes leaves no room for the copy while it is made")
        return False
    finally:
        _signal.signal(_SIGCHLD, _signal.SIG_DFL if handler is None else handler)


def join(family: int | None, places: list[int]) -> None:
    """Move this process, just forked, into the namespaces behind these descriptors, and give up what that gave it.

    Raises:
        OSError: one of them refused; the message says which.
    """
    here = os.getcwd()
    if family is not None:
        _setns(family, _CLONE_NEWUSER)
    for descriptor, kind in zip(places, _JOINED):
        _setns(descriptor, kind)
    try:
        os.chdir(here)
    except OSError:
        os.chdir("/work")
    _keep_few_capabilities()
    _libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)
    _scope_signals()


def _setns(descriptor: int, kind: int) -> None:
    if _libc.setns(descriptor, kind):
        raise OSError(ctypes.get_errno(), f"setns {kind:#x}: {os.strerror(ctypes.get_errno())}")


def _keep_few_capabilities() -> None:
    """In the family's own user namespace, which holds nothing but the family's places."""
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    sets = struct.pack("=6I", _KEPT_CAPABILITIES, _KEPT_CAPABILITIES, 0, 0, 0, 0)
    if _libc.capset(header, sets):
        raise OSError(ctypes.get_errno(), "capset")


def _scope_signals() -> None:
    """A landlock layer: `kill(-1)` in here reaches neither the original nor its other copies.

    The kernel stacks sixteen of them; a copy of copies past that is without.
    """
    attributes = struct.pack("=QQQ", 0, 0, _SCOPE_ABSTRACT_SOCKET | _SCOPE_SIGNAL)
    ruleset = _libc.syscall(_LANDLOCK_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0)
    if ruleset >= 0:
        _libc.syscall(_LANDLOCK_RESTRICT_SELF, ruleset, 0)
        os.close(ruleset)


def part_from_original(state_of_random: Any) -> None:
    """In the copy: what the interpreter would go on sharing, or draw the same numbers from.

    `state_of_random` is what the generators shall go on from; None: they differ from the original's.
    """
    helpers = sys.modules.get("IPython.core.async_helpers")
    loop = getattr(helpers, "_asyncio_event_loop", None)
    if loop is not None:
        _forgotten.append(loop)
        helpers._asyncio_event_loop = None  # type: ignore[union-attr]
    if state_of_random is not None:
        random.setstate(state_of_random)  # the fork has seeded it anew
