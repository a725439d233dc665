"""Landlock: a second opinion on files, and the wall around signals and abstract sockets.

The mounts already make everything but three directories read-only; landlock says it again in terms the mount table
cannot undo. What a kernel's ABI does not know is left out, never refused: the newer rights are extra walls.
"""

from __future__ import annotations

import os
import struct

from belljar.jail import syscalls

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_MAKE_CHAR, _MAKE_BLOCK = 1 << 6, 1 << 11
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_SCOPE_ABSTRACT_SOCKET, _SCOPE_SIGNAL = 1, 2

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


def restrict(version: int, writable: tuple[str, ...], devices: str) -> None:
    """Read and execute anywhere; change things in `writable` only; write to the nodes in `devices`.

    Raises:
        OSError: the kernel refused; the caller must not go on.
    """
    handled = handled_rights(version)
    # handled file rights, handled TCP rights (none: a loopback of its own is not worth a rule), scopes
    attributes = struct.pack("=QQQ", handled, 0, _SCOPE_ABSTRACT_SOCKET | _SCOPE_SIGNAL)
    ruleset = syscalls.landlock_create_ruleset(attributes if version >= 6 else attributes[: 16 if version >= 4 else 8])
    try:
        _allow(ruleset, "/", READ & handled)
        for path in writable:
            _allow(ruleset, path, handled & ~(_MAKE_CHAR | _MAKE_BLOCK | _IOCTL_DEV))
        _allow(ruleset, devices, (READ | _WRITE_FILE | _TRUNCATE | _IOCTL_DEV) & handled)
        syscalls.landlock_restrict_self(ruleset)
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    directory = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        syscalls.landlock_allow_beneath(ruleset, struct.pack("=Qi", rights, directory))
    finally:
        os.close(directory)
