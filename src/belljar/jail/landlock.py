"""Landlock: a second opinion on files, and the wall around signals and abstract sockets.

The mounts already make everything but three directories read-only; landlock says it again in terms the mount table
cannot undo. What a kernel's ABI does not know is left out, never refused: the newer rights are extra walls.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from os import O_CLOEXEC, O_PATH, close, dup
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
_SCOPE_ABSTRACT_SOCKET, _SCOPE_SIGNAL = 1, 2
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
    """Read and execute in `readable`; change things in `writable` only; write to the nodes in `devices`.

    Made before the fork. The rules name a directory by its descriptor, so it is decided here which one that will be:
    `first_free` becomes the ruleset's, the next one each directory's in turn.
    """

    def __init__(
        self,
        version: int,
        writable: tuple[str, ...],
        devices: str,
        first_free: int,
        readable: tuple[str, ...] = ("/",),
    ) -> None:
        handled = handled_rights(version)
        # handled file rights, handled TCP rights (none: a loopback of its own is not worth a rule), scopes
        attributes = struct.pack("=QQQ", handled, 0, _SCOPE_ABSTRACT_SOCKET | _SCOPE_SIGNAL)
        self.attributes = attributes[: 24 if version >= 6 else 16 if version >= 4 else 8]
        change = handled & ~(_MAKE_CHAR | _MAKE_BLOCK | _IOCTL_DEV)
        use_device = (READ | _WRITE_FILE | _TRUNCATE | _IOCTL_DEV) & handled
        seen = [(path, READ & handled) for path in readable]
        allowed = [*seen, *((path, change) for path in writable), (devices, use_device)]
        self.ruleset, self.directory = first_free, first_free + 1
        packed = ((path.encode(), struct.pack("=Qi", rights, self.directory)) for path, rights in allowed)
        self.rules = tuple(packed)

    def put_up(self) -> bool:
        """Put the calling thread behind these rules; False when the kernel refuses: the caller must not go on.

        `jail/enter.py` does the same in its own flat way.
        """
        ruleset, directory = self.ruleset, self.directory
        attributes = self.attributes
        if call(LANDLOCK_CREATE_RULESET, attributes, len(attributes), 0) != ruleset:
            return False
        for path, rule in self.rules:
            if open_path(path, PATH_ONLY) != directory:
                return False
            if call(LANDLOCK_ADD_RULE, ruleset, LANDLOCK_RULE_PATH_BENEATH, rule, 0):
                return False
            close(directory)
        if call(LANDLOCK_RESTRICT_SELF, ruleset, 0):
            return False
        close(ruleset)
        return True


def restrict(version: int, writable: tuple[str, ...], devices: str, readable: tuple[str, ...] = ("/",)) -> None:
    """Put the calling thread behind a ruleset made on the spot.

    Raises:
        OSError: the kernel refused.
    """
    first_free = dup(0)
    close(first_free)
    if not Ruleset(version, writable, devices, first_free, readable).put_up():
        raise failure()


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
