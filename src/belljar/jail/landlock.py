"""Landlock: a second opinion on files, and the wall around signals and abstract sockets.

The mounts already make everything but three directories read-only; landlock says it again in terms the mount table
cannot undo. What a kernel's ABI does not know is left out, never refused: the newer rights are extra walls.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from os import O_CLOEXEC, O_PATH, close
from os import open as open_path

from belljar.jail.syscalls import (
    LANDLOCK_ADD_RULE,
    LANDLOCK_CREATE_RULESET,
    LANDLOCK_RESTRICT_SELF,
    LANDLOCK_RULE_PATH_BENEATH,
    call,
    failure,
)

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_MAKE_CHAR, _MAKE_BLOCK = 1 << 6, 1 << 11
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_SCOPE_ABSTRACT_SOCKET, _SCOPE_SIGNAL, _SCOPES_SINCE = 1, 2, 6
_BIND_TCP, _CONNECT_TCP = 1, 2
_RULE_NET_PORT = 2

PATH_ONLY = O_PATH | O_CLOEXEC

READ = _EXECUTE | _READ_FILE | _READ_DIR


def handled_rights(version: int) -> int:
    """Every file right this ABI can govern."""
    rights = (1 << 13) - 1
    if version >= 2:
        rights |= _REFER
    if version >= 3:
        rights |= _TRUNCATE
    if version >= 5:
        rights |= _IOCTL_DEV
    return rights


class Ruleset:
    """Read and execute in `readable`; change things in `writable` only; write to the nodes in `devices`."""

    def __init__(
        self, version: int, writable: tuple[str, ...], devices: str, readable: tuple[str, ...] = ("/",)
    ) -> None:
        handled = handled_rights(version)
        # handled file rights, handled TCP rights (none: a loopback of its own is not worth a rule), scopes
        attributes = struct.pack("=QQQ", handled, 0, _SCOPE_ABSTRACT_SOCKET | _SCOPE_SIGNAL)
        self.attributes = attributes[: 24 if version >= 6 else 16 if version >= 4 else 8]
        change = handled & ~(_MAKE_CHAR | _MAKE_BLOCK | _IOCTL_DEV)
        use_device = (READ | _WRITE_FILE | _TRUNCATE | _IOCTL_DEV) & handled
        seen = [(path, READ & handled) for path in readable]
        self._allowed = [*seen, *((path, change) for path in writable), (devices, use_device)]

    def rules(self, directory: int) -> tuple[tuple[bytes, bytes], ...]:
        """Each path with its rule as the kernel takes it, once that path is open as the descriptor `directory`."""
        return tuple((path.encode(), struct.pack("=Qi", rights, directory)) for path, rights in self._allowed)

    def open(self) -> int:
        """These rules, about the directories that are there now, for who is to be put behind them; the caller owns it.

        `jail/enter.py` does the same in its own flat way.

        Raises:
            OSError: the kernel refused.
        """
        ruleset = call(LANDLOCK_CREATE_RULESET, self.attributes, len(self.attributes), 0)
        if ruleset < 0:
            raise failure()
        try:
            for path, rights in self._allowed:
                directory = open_path(path, PATH_ONLY)
                try:
                    rule = struct.pack("=Qi", rights, directory)
                    if call(LANDLOCK_ADD_RULE, ruleset, LANDLOCK_RULE_PATH_BENEATH, rule, 0):
                        raise failure()
                finally:
                    close(directory)
        except BaseException:
            close(ruleset)
            raise
        return ruleset


def shield(version: int) -> int:
    """A ruleset for a branch, which the caller owns: behind it neither the session nor its other branches are in reach.

    The layer itself keeps a process from looking into those outside of it, and since Linux 6.12 from signalling them.
    An older landlock knows no signals; so that there is a layer at all, it forbids what no session can do anyway.

    Raises:
        OSError: the kernel refused.
    """
    scopes = struct.pack("=QQQ", 0, 0, _SCOPE_ABSTRACT_SOCKET | _SCOPE_SIGNAL)
    attributes = scopes if version >= _SCOPES_SINCE else struct.pack("=Q", _MAKE_BLOCK)
    ruleset = call(LANDLOCK_CREATE_RULESET, attributes, len(attributes), 0)
    if ruleset < 0:
        raise failure()
    return ruleset


def restrict(version: int, writable: tuple[str, ...], devices: str, readable: tuple[str, ...] = ("/",)) -> None:
    """Put the calling thread behind a ruleset made on the spot.

    Raises:
        OSError: the kernel refused.
    """
    ruleset = Ruleset(version, writable, devices, readable).open()
    try:
        if call(LANDLOCK_RESTRICT_SELF, ruleset, 0):
            raise failure()
    finally:
        close(ruleset)


def restrict_tcp(version: int, ports: Sequence[int]) -> None:
    """Keep the calling thread from listening over TCP, and from connecting to any other port; since Linux 6.7.

    Raises:
        OSError: the kernel refused.
    """
    if version < 4:
        return
    attributes = struct.pack("=QQ", 0, _BIND_TCP | _CONNECT_TCP)
    ruleset = call(LANDLOCK_CREATE_RULESET, attributes, len(attributes), 0)
    if ruleset < 0:
        raise failure()
    try:
        for port in ports:
            if call(LANDLOCK_ADD_RULE, ruleset, _RULE_NET_PORT, struct.pack("=QQ", _CONNECT_TCP, port), 0):
                raise failure()
        if call(LANDLOCK_RESTRICT_SELF, ruleset, 0):
            raise failure()
    finally:
        close(ruleset)
