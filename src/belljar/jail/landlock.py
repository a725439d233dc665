"""Landlock: a second wall around files, and the wall around signals and abstract sockets.

The mounts already make everything but three directories read-only; landlock enforces the same rule independently of
the mount table. Rights that the kernel's landlock ABI does not know are left out without an error.
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
    """Return every file right that this landlock ABI version can restrict."""
    rights = (1 << 13) - 1
    if version >= 2:
        rights |= _REFER
    if version >= 3:
        rights |= _TRUNCATE
    if version >= 5:
        rights |= _IOCTL_DEV
    return rights


class Ruleset:
    """Rules that allow to read and execute in `readable`, to change files in `writable`, and to use `devices`."""

    def __init__(
        self, version: int, writable: tuple[str, ...], devices: str, readable: tuple[str, ...] = ("/",)
    ) -> None:
        handled = handled_rights(version)
        # Handled file rights, handled TCP rights (0, because each jail has a network of its own), and scopes.
        attributes = struct.pack("=QQQ", handled, 0, _SCOPE_ABSTRACT_SOCKET | _SCOPE_SIGNAL)
        self.attributes = attributes[: 24 if version >= 6 else 16 if version >= 4 else 8]
        change = handled & ~(_MAKE_CHAR | _MAKE_BLOCK | _IOCTL_DEV)
        use_device = (READ | _WRITE_FILE | _TRUNCATE | _IOCTL_DEV) & handled
        seen = [(path, READ & handled) for path in readable]
        self._allowed = [*seen, *((path, change) for path in writable), (devices, use_device)]

    def rules(self, directory: int) -> tuple[tuple[bytes, bytes], ...]:
        """Return each path with its rule in the kernel's format, which expects the path open as `directory`."""
        return tuple((path.encode(), struct.pack("=Qi", rights, directory)) for path, rights in self._allowed)

    def open(self) -> int:
        """Create a kernel ruleset for the directories mounted now; the caller owns the descriptor.

        `jail/enter.py` has a flat copy of this for guests.

        Raises:
            OSError: the kernel rejected the ruleset or a rule.
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
    """Create a ruleset that separates a branch from its session and from other branches; the caller owns it.

    Any landlock layer keeps a process from tracing processes outside of it, and since Linux 6.12 (ABI 6) also from
    signalling them. An older ABI cannot restrict signals and refuses an empty ruleset, so there the layer forbids
    something that no session can do anyway.

    Raises:
        OSError: the kernel rejected the ruleset.
    """
    scopes = struct.pack("=QQQ", 0, 0, _SCOPE_ABSTRACT_SOCKET | _SCOPE_SIGNAL)
    attributes = scopes if version >= _SCOPES_SINCE else struct.pack("=Q", _MAKE_BLOCK)
    ruleset = call(LANDLOCK_CREATE_RULESET, attributes, len(attributes), 0)
    if ruleset < 0:
        raise failure()
    return ruleset


def restrict(version: int, writable: tuple[str, ...], devices: str, readable: tuple[str, ...] = ("/",)) -> None:
    """Create a `Ruleset` and apply it to the calling thread.

    Raises:
        OSError: the kernel rejected it.
    """
    ruleset = Ruleset(version, writable, devices, readable).open()
    try:
        if call(LANDLOCK_RESTRICT_SELF, ruleset, 0):
            raise failure()
    finally:
        close(ruleset)


def restrict_tcp(version: int, ports: Sequence[int]) -> None:
    """Forbid the calling thread to listen on TCP and to connect to ports not in `ports`; no-op before Linux 6.7.

    Raises:
        OSError: the kernel rejected the rules.
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
