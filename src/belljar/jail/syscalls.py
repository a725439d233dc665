"""System calls that `os` lacks, made through ctypes: one function each.

Numbers above 423 are the same on every architecture; the other calls go through libc's wrappers. Every function raises
OSError with the name of the call, so that an error about a wall names the call that failed.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable

_libc = ctypes.CDLL(None, use_errno=True)
_syscall = _libc.syscall
_syscall.restype = ctypes.c_long


def make_call() -> Callable[..., int]:
    """Create another object like `call`, for callers that want it next to their other objects in memory."""
    return ctypes.PyDLL(None, use_errno=True)["syscall"]


#: Makes any system call by its number; returns -1 and sets ctypes' errno when it fails. Integers must fit in a C int;
#: pass bytes for pointers. It holds the interpreter lock and checks no types: a guest that has just been forked pays a
#: page fault for every object it touches, and this touches the fewest.
call = make_call()

# Looked up and typed here, before any fork, so that a guest touches few pages.
_unshare = _libc.unshare
_unshare.argtypes = (ctypes.c_int,)
_setns = _libc.setns
_setns.argtypes = (ctypes.c_int, ctypes.c_int)
_mount = _libc.mount
_mount.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p)
_prctl = _libc.prctl
_prctl.argtypes = (ctypes.c_int, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong)

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY = 0x1
MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_REMOUNT = 0x20
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x40000
MNT_DETACH = 0x2

OPEN_TREE_CLONE = 0x1
AT_RECURSIVE = 0x8000
AT_EMPTY_PATH = 0x1000
MOVE_MOUNT_F_EMPTY_PATH = 0x4
MOUNT_ATTR_RDONLY = 0x1
MOUNT_ATTR_NOSUID = 0x2
MOUNT_ATTR_NODEV = 0x4
MOUNT_ATTR_NOEXEC = 0x8

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_SECCOMP = 22
PR_CAPBSET_DROP = 24
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_RAISE = 2
PR_CAP_AMBIENT_CLEAR_ALL = 4

RESOLVE_NO_XDEV = 0x01
RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_NO_SYMLINKS = 0x04
RESOLVE_BENEATH = 0x08

_OPEN_TREE = 428
_MOVE_MOUNT = 429
_FSOPEN = 430
_FSCONFIG = 431
_FSMOUNT = 432
_OPENAT2 = 437
_MOUNT_SETATTR = 442
LANDLOCK_CREATE_RULESET = 444
LANDLOCK_ADD_RULE = 445
LANDLOCK_RESTRICT_SELF = 446
LANDLOCK_RULE_PATH_BENEATH = 1
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_SECCOMP = {"x86_64": 317, "aarch64": 277}
_SET_MODE_FILTER, _FLAG_NEW_LISTENER = 1, 1 << 3
_LANDLOCK_CREATE_RULESET_VERSION = 1
_FSCONFIG_SET_STRING, _FSCONFIG_CMD_CREATE = 1, 6
_CLOSE_ON_EXEC = 1  # FSOPEN_CLOEXEC, FSMOUNT_CLOEXEC
_CAPABILITY_VERSION_3 = 0x20080522
CAPABILITIES_OVER_FILES = 0x1F | 1 << 9 | 1 << 27  # CHOWN, DAC_*, FOWNER, FSETID, LINUX_IMMUTABLE, MKNOD
_SIGNAL_SET_BYTES = 128  # the C library's; the kernel's is shorter


def _checked(name: str, result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result


def failure() -> OSError:
    """Return the OSError of the last failed `call`."""
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))


def unshare(flags: int) -> None:
    """Move this process to new namespaces of the kinds in `flags`."""
    _checked("unshare", _unshare(flags))


def setns(descriptor: int, flags: int) -> None:
    """Join namespaces of the process that a pidfd refers to, or the namespace that a namespace file refers to."""
    _checked("setns", _setns(descriptor, flags))


def mount(source: bytes, target: bytes, kind: bytes, flags: int, options: bytes | None = None) -> None:
    if _mount(source, target, kind, flags, options) < 0:
        _checked(f"mount {os.fsdecode(kind) or 'flags'} on {os.fsdecode(target)}", -1)


def unmount(target: str) -> None:
    """Detach a mount at once; the kernel removes it when it is no longer in use."""
    _checked(f"umount {target}", _libc.umount2(os.fsencode(target), MNT_DETACH))


def pivot_root(new_root: str, put_old: str) -> None:
    """Make `new_root` the root of this mount namespace."""
    number = _PIVOT_ROOT[os.uname().machine]
    _checked("pivot_root", _syscall(number, os.fsencode(new_root), os.fsencode(put_old)))


def clone_tree(path: str, recursive: bool = True) -> int:
    """Return a detached copy of the mounts at `path` as a descriptor, which the caller owns."""
    flags = OPEN_TREE_CLONE | os.O_CLOEXEC | (AT_RECURSIVE if recursive else 0)
    return _checked(f"open_tree {path}", _syscall(_OPEN_TREE, -100, os.fsencode(path), flags))


def make_tmpfs(options: dict[str, str]) -> int:
    """Return a new detached tmpfs as a descriptor, which the caller owns."""
    context = _checked("fsopen", _syscall(_FSOPEN, b"tmpfs", _CLOSE_ON_EXEC))
    try:
        for name, value in options.items():
            result = _syscall(_FSCONFIG, context, _FSCONFIG_SET_STRING, name.encode(), value.encode(), 0)
            _checked(f"fsconfig {name}", result)
        _checked("fsconfig", _syscall(_FSCONFIG, context, _FSCONFIG_CMD_CREATE, None, None, 0))
        return _checked("fsmount", _syscall(_FSMOUNT, context, _CLOSE_ON_EXEC, 0))
    finally:
        os.close(context)


def attach_tree(tree: int, target: str) -> None:
    """Mount a detached tree on `target`."""
    result = _syscall(_MOVE_MOUNT, tree, b"", -100, os.fsencode(target), MOVE_MOUNT_F_EMPTY_PATH)
    _checked(f"move_mount {target}", result)


class _MountAttributes(ctypes.Structure):
    _fields_ = (
        ("attr_set", ctypes.c_uint64),
        ("attr_clr", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns_fd", ctypes.c_uint64),
    )


def set_mount_attributes(tree: int, attributes: int) -> None:
    """Add mount attributes to a whole detached tree."""
    wanted = _MountAttributes(attributes, 0, MS_PRIVATE, 0)
    size = ctypes.c_size_t(ctypes.sizeof(wanted))
    flags = AT_EMPTY_PATH | AT_RECURSIVE
    _checked("mount_setattr", _syscall(_MOUNT_SETATTR, tree, b"", flags, ctypes.byref(wanted), size))


def open_signal(number: int) -> int:
    """Return a descriptor that is readable while this signal, which must be blocked, is pending; the caller owns it."""
    signals = (1 << number - 1).to_bytes(_SIGNAL_SET_BYTES, "little")
    return _checked("signalfd", _libc.signalfd(-1, signals, os.O_CLOEXEC | os.O_NONBLOCK))


def prctl(option: int, *arguments: int) -> int:
    """Call prctl(2) with all arguments as unsigned longs."""
    result = _prctl(option, *(*arguments, 0, 0, 0, 0)[:4])
    return int(result) if result >= 0 else _checked(f"prctl {option}", -1)


class FilterProgram(ctypes.Structure):
    """A classic BPF program in the kernel's format (struct sock_fprog); create it before the fork that uses it."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))

    def __init__(self, program: bytes) -> None:
        super().__init__(len(program) // 8, program)


def install_seccomp(program: FilterProgram) -> None:
    """Install a seccomp filter for the calling thread; requires no_new_privs."""
    _checked("seccomp", _prctl(PR_SET_SECCOMP, 2, ctypes.addressof(program), 0, 0))


def install_seccomp_with_listener(program: FilterProgram) -> int:
    """Install a filter that asks a supervisor about some calls; requires no_new_privs.

    Return the descriptor that reports these calls, which the caller owns. It is below 0 if the kernel does not support
    listeners or another supervisor already has one: then the filter is installed and these calls fail with ENOSYS.
    """
    number = _SECCOMP.get(os.uname().machine, -1)
    listener = int(_syscall(number, _SET_MODE_FILTER, _FLAG_NEW_LISTENER, ctypes.byref(program)))
    if listener < 0:
        install_seccomp(program)
    return listener


class _CapabilityHeader(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


_CapabilitySets = ctypes.c_uint32 * 6


def set_capabilities(permitted: int, inheritable: int) -> None:
    """Set the effective and permitted sets of this thread to `permitted`, and its inheritable set."""
    low, high = permitted & 0xFFFFFFFF, permitted >> 32
    sets = _CapabilitySets(low, low, inheritable & 0xFFFFFFFF, high, high, inheritable >> 32)
    header = _CapabilityHeader(_CAPABILITY_VERSION_3, 0)
    _checked("capset", _libc.capset(ctypes.byref(header), ctypes.byref(sets)))


def permitted_capabilities() -> int:
    """Return the permitted set of this thread as a bit mask."""
    sets = _capability_sets()
    return int(sets[1]) | int(sets[4]) << 32


def effective_capabilities() -> int:
    """Return the effective set of this thread as a bit mask."""
    sets = _capability_sets()
    return int(sets[0]) | int(sets[3]) << 32


def _capability_sets() -> ctypes.Array[ctypes.c_uint32]:
    sets = _CapabilitySets()
    header = _CapabilityHeader(_CAPABILITY_VERSION_3, 0)
    _checked("capget", _libc.capget(ctypes.byref(header), ctypes.byref(sets)))
    return sets


def landlock_version() -> int:
    """Return the version of the kernel's landlock ABI, or 0 if landlock is not available."""
    result = _syscall(LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), _LANDLOCK_CREATE_RULESET_VERSION)
    return max(int(result), 0)


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


class NoDescriptors(Exception):
    """No file descriptors are left; not an OSError, so that it is never mistaken for a missing file."""


def open_beneath(directory: int, path: str, flags: int, mode: int = 0) -> int:
    """Open `path` under `directory` without following any link or leaving its file system.

    Raises:
        OSError: the file does not exist or cannot be opened.
        NoDescriptors: this process or the machine has no descriptors left.
    """
    resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_XDEV
    how = _OpenHow(flags | os.O_CLOEXEC, mode, resolve)
    size = ctypes.c_size_t(ctypes.sizeof(how))
    try:
        return _checked("openat2", _syscall(_OPENAT2, directory, os.fsencode(path), ctypes.byref(how), size))
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise NoDescriptors(str(error)) from error
        raise
