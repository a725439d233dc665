"""With which rights, and beneath which directories, the host touches files of a program.

Never with its own rights: a descriptor that came from a jail could lead anywhere in sight of it, and what the program
may not read the host must not read for it. So a thread takes on the program's uid, for files only, while it works, and
a directory is accepted only if the kernel says that it is one of those that were mounted for a program to write to.
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
_ASK_ONLY = -1  # an id that no file system has: setfsuid and setfsgid then change nothing and answer with the old one
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
    """Let this thread, and no other, touch files as `owner` (uid and gid) may; None: its own rights are the program's.

    The caller is root; the thread is as it was when this is left.

    Raises:
        PermissionError: the thread still has other rights than those of `owner`; nothing was done.
    """
    if owner is None:
        yield
        return
    groups = os.getgroups()
    before = _current("setfsuid"), _current("setfsgid")
    try:
        _set_groups([])
        for name in ("setfsgid", "setfsuid"):  # in this order: the second gives up the right to the first
            syscalls.call(_NUMBERS[name], owner)
        _check_acting_as(owner)
        yield
    finally:
        syscalls.call(_NUMBERS["setfsuid"], before[0])
        syscalls.call(_NUMBERS["setfsgid"], before[1])
        _set_groups(groups)


def _check_acting_as(owner: int) -> None:
    """The two calls above report nothing, and with some security bits the capabilities stay."""
    if (_current("setfsuid"), _current("setfsgid")) != (owner, owner):
        raise PermissionError(errno.EPERM, f"this thread cannot touch files as uid {owner}")
    if syscalls.effective_capabilities() & syscalls.CAPABILITIES_OVER_FILES:
        raise PermissionError(errno.EPERM, "this thread keeps root's rights over files")


def _current(name: str) -> int:
    return syscalls.call(_NUMBERS[name], _ASK_ONLY) & 0xFFFFFFFF


def _set_groups(groups: Sequence[int]) -> None:
    """Of this thread alone: the C library's function would change those of every thread."""
    if syscalls.call(_NUMBERS["setgroups"], len(groups), struct.pack(f"={len(groups)}I", *groups)):
        raise syscalls.failure()


def check_writable_dirs(directories: Sequence[int], owner: int) -> None:
    """See that each is the root of a tmpfs of its own, made by uid `owner` for programs to write to.

    Guests can neither mount nor change the mode or owner of these roots, so no other directory looks like one.

    Raises:
        NotOurs: one is anything else.
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
            raise NotOurs("it is not the root of a directory that was mounted for a program to write to")
        devices.add(device)
    if len(devices) != len(directories):
        raise NotOurs("two of them are the same")


def _facts(descriptor: int) -> tuple[int, int, int, int]:
    """Mode, owner, attributes and device."""
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
