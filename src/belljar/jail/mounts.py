"""Mounts: the guests' minimal read-only root, and the directories that they may write to.

The warden builds the root once per environment from an allow-list and pivots into it before any zygote starts, so even
a zygote never sees the host's files. A jail has a copy of the mount table in which /proc and the three writable
directories are covered with file systems of its own. A guest joins that mount namespace, or covers the three
directories once more for itself.

Each bind mount is first cloned as a detached tree and made read-only there, so a writable bind is never visible.
"""

from __future__ import annotations

import functools
import os
import stat
from collections.abc import Sequence

from belljar.jail import policy, syscalls
from belljar.jail.syscalls import MS_NODEV, MS_NOEXEC, MS_NOSUID

_READ_ONLY = syscalls.MOUNT_ATTR_RDONLY | syscalls.MOUNT_ATTR_NOSUID | syscalls.MOUNT_ATTR_NODEV
_DEVICE = syscalls.MOUNT_ATTR_RDONLY | syscalls.MOUNT_ATTR_NOSUID | syscalls.MOUNT_ATTR_NOEXEC  # writing still works
_FRESH_DIRS = tuple(path.encode() for path in policy.WRITABLE_DIRS)
_LOOK = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_STAGE = "/tmp"  # any directory: no other process is in this mount namespace


def build_root(
    bound: dict[str, str],
    hidden: Sequence[str],
    guest_uids: Sequence[int],
    code: dict[str, bytes],
    system: str = "",
    has_own_devices: bool = False,
) -> None:
    """Build the guests' root and pivot into it; the caller must be alone in its mount and pid namespaces.

    `bound` maps paths in the jail to paths of the host, which are mounted read-only; directories in `hidden` are empty.
    `system` is the root directory of another system, whose /usr and so on are mounted instead of the host's.
    `has_own_devices` creates device nodes, which requires that right; otherwise the host's nodes are mounted.

    Raises:
        OSError: a step failed; the message names the call and the path.
    """
    syscalls.mount(b"none", b"/", b"", syscalls.MS_REC | syscalls.MS_PRIVATE)
    shown = {path: system + path for path in (*policy.SYSTEM_TREES, *policy.CONFIGURATION_TREES)}
    shown = {place: path for place, path in shown.items() if _is_real_dir(path)}
    trees = [(place, syscalls.clone_tree(path)) for place, path in {**shown, **bound}.items()]
    shared = () if has_own_devices else policy.DEVICES
    devices = [(f"/dev/{name}", syscalls.clone_tree(f"/dev/{name}", recursive=False)) for name in shared]
    files = {path: _read(system + path) for path in policy.CONFIGURATION_FILES if os.path.isfile(system + path)}
    links = {path: os.readlink(system + path) for path in policy.SYSTEM_TREES if os.path.islink(system + path)}
    files.update(_written_configuration(guest_uids))
    files.update({f"{policy.CODE_DIR}/{name}": content for name, content in code.items()})

    syscalls.mount(b"belljar", _STAGE.encode(), b"tmpfs", MS_NOSUID | MS_NODEV, b"mode=0755,size=64m")
    for path in ("/proc", *policy.WRITABLE_DIRS):
        os.makedirs(_STAGE + path, 0o755)
    for path, target in links.items():
        os.symlink(target, _STAGE + path)
    for path, content in files.items():
        _write(_STAGE + path, content)
    for path, tree in trees:
        os.makedirs(_STAGE + path, 0o755, exist_ok=True)
        _attach(tree, _STAGE + path, _READ_ONLY)
    for path in hidden:
        flags = MS_NOSUID | MS_NODEV | MS_NOEXEC | syscalls.MS_RDONLY
        syscalls.mount(b"none", os.fsencode(_STAGE + path), b"tmpfs", flags, b"size=4k,nr_inodes=2")
    for path, tree in devices:
        _write(_STAGE + path, b"")
        _attach(tree, _STAGE + path, _DEVICE)
    if has_own_devices:
        own = make_devices()
        syscalls.attach_tree(own, _STAGE + policy.DEVICES_DIR)
        os.close(own)
    else:
        for name, target in policy.DEVICE_LINKS.items():
            os.symlink(f"/proc/self/{target}", f"{_STAGE}/dev/{name}")
    syscalls.mount(b"proc", f"{_STAGE}/proc".encode(), b"proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    _pivot(_STAGE)


def make_devices() -> int:
    """Create a detached /dev for one jail; the caller owns the descriptor.

    Inotify on an inode reports every writer: with the host's nodes a program could count what its neighbours and the
    host write to /dev/null. Device nodes work only if they were created outside of any user namespace.

    Raises:
        OSError: the caller may not create devices, or the kernel does not support detached mounts.
    """
    tree = syscalls.make_tmpfs({"mode": "0755", "size": "4k", "nr_inodes": "16"})
    try:
        for name, (major, minor) in policy.DEVICES.items():
            os.mknod(name, stat.S_IFCHR | 0o666, os.makedev(major, minor), dir_fd=tree)
            os.chmod(name, 0o666, dir_fd=tree)  # whatever the caller's umask is
        for name, target in policy.DEVICE_LINKS.items():
            os.symlink(f"/proc/self/{target}", name, dir_fd=tree)
        os.mkdir("shm", dir_fd=tree)
        os.chmod("shm", 0o755, dir_fd=tree)
        syscalls.set_mount_attributes(tree, _DEVICE)
    except BaseException:
        os.close(tree)
        raise
    return tree


def can_make_devices() -> bool:
    """Whether `make_devices` works on this machine and its nodes can be opened."""
    try:
        tree = make_devices()
    except OSError:
        return False
    try:
        os.close(os.open("null", os.O_RDWR, dir_fd=tree))
    except OSError:  # a container's device rules may allow to create nodes but not to open them
        return False
    finally:
        os.close(tree)
    return True


def cover_devices(tree: int) -> None:
    """Cover /dev in the mount namespace of a jail with a tree from `make_devices`."""
    syscalls.attach_tree(tree, policy.DEVICES_DIR)


def mount_scratch(path: str) -> None:
    """Mount a small tmpfs on `path` in a new mount namespace, so that only the caller sees and writes it."""
    syscalls.unshare(syscalls.CLONE_NEWNS)
    syscalls.mount(b"scratch", path.encode(), b"tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, b"size=64m,mode=0700")


def _is_real_dir(path: str) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)


def _attach(tree: int, target: str, attributes: int) -> None:
    syscalls.set_mount_attributes(tree, attributes)
    syscalls.attach_tree(tree, target)
    os.close(tree)


def _pivot(new_root: str) -> None:
    os.chdir(new_root)
    syscalls.pivot_root(".", ".")  # stacks the old root on the new one, so it needs no directory
    syscalls.unmount(".")
    os.chdir("/")
    flags = syscalls.MS_REMOUNT | syscalls.MS_BIND | syscalls.MS_RDONLY | MS_NOSUID | MS_NODEV
    syscalls.mount(b"none", b"/", b"", flags)


def _written_configuration(guest_uids: Sequence[int]) -> dict[str, bytes]:
    users = [f"sandbox:x:{uid}:{uid}:sandbox:{policy.WORK_DIR}:/bin/sh" for uid in guest_uids]
    groups = [f"sandbox:x:{uid}:" for uid in guest_uids]
    lines = {
        "/etc/passwd": ["root:x:0:0:root:/:/bin/sh", *users, "nobody:x:65534:65534:nobody:/:/bin/sh"],
        "/etc/group": ["root:x:0:", *groups, "nogroup:x:65534:"],
        "/etc/hosts": ["127.0.0.1 localhost", "::1 localhost", f"127.0.1.1 {policy.HOSTNAME}"],
        "/etc/hostname": [policy.HOSTNAME],
        "/etc/nsswitch.conf": ["passwd: files", "group: files", "hosts: files", "services: files", "protocols: files"],
        "/etc/resolv.conf": ["# no network"],
    }
    return {path: ("\n".join(each) + "\n").encode() for path, each in lines.items()}


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _write(path: str, content: bytes) -> None:
    os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
    with open(path, "wb") as file:
        file.write(content)


def mount_proc() -> None:
    """Mount a read-only /proc of the caller's pid namespace that shows a reader only processes of its own uid.

    It is read-only because some of its files affect other processes: an autogroup's CPU weight, another's memory.
    """
    flags = MS_NOSUID | MS_NODEV | MS_NOEXEC | syscalls.MS_RDONLY
    syscalls.mount(b"proc", b"/proc", b"proc", flags, b"hidepid=invisible,subset=pid")


@functools.lru_cache(maxsize=16)
def fresh_dir_options(disk_bytes: int) -> bytes:
    """Return the tmpfs mount options that limit a writable directory in bytes and in number of files."""
    inodes = max(64, disk_bytes // policy.BYTES_PER_INODE)
    return f"size={disk_bytes},nr_inodes={inodes},mode=1777".encode()


def mount_fresh_dirs(options: bytes) -> None:
    """Mount a new, empty tmpfs on each writable directory; `jail/enter.py` has a flat copy of this for guests."""
    for path in _FRESH_DIRS:
        syscalls.mount(b"tmpfs", path, b"tmpfs", MS_NOSUID | MS_NODEV, options)


def drop_dirs() -> None:
    """Unmount the writable directories, which deletes everything in them.

    Unlike deleting files, this works whatever a program has left there. All directories are replaced together: mounts
    are listed by age, so the next program could otherwise see which of them the last one has used.
    """
    for path in reversed(policy.WRITABLE_DIRS):
        syscalls.unmount(path)


def open_ipc_records() -> list[int]:
    """Open the files that show whether the caller's ipc namespace is empty; the caller owns the descriptors.

    These are the kernel's tables of System V memory, semaphores and queues, and the directory of POSIX queues. Once
    open they show this namespace to any reader. Call this before a jail's own /proc is mounted, which lacks the tables.
    """
    opened = [os.open(f"/proc/sysvipc/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in ("shm", "sem", "msg")]
    place = policy.WORK_DIR
    syscalls.mount(b"mqueue", place.encode(), b"mqueue", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    opened.append(os.open(place, _LOOK))
    syscalls.unmount(place)
    return opened


def open_fresh_dirs(options: bytes) -> list[int]:
    """Call `mount_fresh_dirs` and return a descriptor of each directory, which the caller owns."""
    mount_fresh_dirs(options)
    opened: list[int] = []
    try:
        for path in policy.WRITABLE_DIRS:
            opened.append(os.open(path, _LOOK))
    except OSError:
        for directory in opened:
            os.close(directory)
        raise
    return opened
