"""Let the host touch a program's files with the program's rights, and only in directories mounted for it.

The host never uses its own rights: a descriptor that came from a jail could lead to any file that the host can open,
and the host must not read for a program what the program itself may not read. So a host thread takes on the program's
uid (for file access only) while it works, and it accepts a directory only if the kernel reports it as one that was
mounted for a program to write to.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
import struct
from collections.abc import Iterator, Sequence

from belljar.jail import seccomp, syscalls

_NUMBERS = seccomp.SYSCALLS.get(os.uname().machine, {})
_ASK_ONLY = -1  # an invalid id: setfsuid and setfsgid then change nothing and return the current one
_TMPFS_MAGIC = 0x01021994
_ATTRIBUTE_MOUNT_ROOT = 0x2000
_BASIC_FACTS = 0x7FF
_WRITABLE_MODE = stat.S_IFDIR | 0o1777
_STATX = struct.Struct("=II Q III HH QQQ Q")  # as far as the mask of known attributes
_STATX_BYTES, _STATFS_BYTES = 256, 256


class NotOurs(Exception):
    """A descriptor is not a directory that was mounted for a program to write to."""


@contextlib.contextmanager
def acting_as(owner: int | None) -> Iterator[None]:
    """Give this thread, and no other, the file rights of `owner` (uid and gid) while the context is open.

    None means that this process has the program's rights anyway. Otherwise the caller must be root.

    Raises:
        PermissionError: the thread could not be limited to the rights of `owner`; the body was not run.
    """
    if owner is None:
        yield
        return
    groups = os.getgroups()
    before = _current("setfsuid"), _current("setfsgid")
    try:
        _set_groups([])
        for name in ("setfsgid", "setfsuid"):  # in this order: setfsuid drops the right to call setfsgid
            syscalls.call(_NUMBERS[name], owner)
        _check_acting_as(owner)
        yield
    finally:
        syscalls.call(_NUMBERS["setfsuid"], before[0])
        syscalls.call(_NUMBERS["setfsgid"], before[1])
        _set_groups(groups)


def _check_acting_as(owner: int) -> None:
    """Check that the ids changed: setfsuid reports no errors, and with some secure bits it leaves capabilities."""
    if (_current("setfsuid"), _current("setfsgid")) != (owner, owner):
        raise PermissionError(errno.EPERM, f"this thread cannot touch files as uid {owner}")
    if syscalls.effective_capabilities() & syscalls.CAPABILITIES_OVER_FILES:
        raise PermissionError(errno.EPERM, "this thread keeps root's rights over files")


def _current(name: str) -> int:
    return syscalls.call(_NUMBERS[name], _ASK_ONLY) & 0xFFFFFFFF


def _set_groups(groups: Sequence[int]) -> None:
    """Set the groups of this thread alone; the C library's function would change those of every thread."""
    if syscalls.call(_NUMBERS["setgroups"], len(groups), struct.pack(f"={len(groups)}I", *groups)):
        raise syscalls.failure()


def check_writable_dirs(directories: Sequence[int], owner: int) -> None:
    """Check that each directory is the root of a tmpfs of its own that uid `owner` mounted for programs to write to.

    Guests can neither mount nor change the mode or owner of these roots, so they cannot fake one.

    Raises:
        NotOurs: a directory is anything else.
    """
    devices = set()
    for directory in directories:
        try:
            mode, uid, attributes, device = _facts(directory)
            kind = _file_system(directory)
        except OSError as error:
            raise NotOurs(str(error)) from error
        is_root = attributes & _ATTRIBUTE_MOUNT_ROOT
        if kind != _TMPFS_MAGIC or not is_root or mode != _WRITABLE_MODE or uid != owner:
            raise NotOurs("the descriptor is not the root of a tmpfs that was mounted for a program to write to")
        devices.add(device)
    if len(devices) != len(directories):
        raise NotOurs("two of the directories are the same")


def _facts(descriptor: int) -> tuple[int, int, int, int]:
    """Return mode, owner, attributes and device of an open file."""
    answer = ctypes.create_string_buffer(_STATX_BYTES)
    if syscalls.call(_NUMBERS["statx"], descriptor, b"", syscalls.AT_EMPTY_PATH, _BASIC_FACTS, answer):
        raise syscalls.failure()
    _, _, attributes, _, uid, _, mode, _, _, _, _, known = _STATX.unpack_from(answer)
    return mode, uid, attributes & known, os.fstat(descriptor).st_dev


def _file_system(descriptor: int) -> int:
    answer = ctypes.create_string_buffer(_STATFS_BYTES)
    if syscalls.call(_NUMBERS["fstatfs"], descriptor, answer):
        raise syscalls.failure()
    (kind,) = struct.unpack_from("=q", answer)
    return int(kind)
