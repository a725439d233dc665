"""Reserve a range of host uids and a name for cgroups for one running Belljar instance, and recover after a crash.

Both reservations are locked files; the kernel drops a lock when its process ends, however it ends. Uids are reserved in
one directory for the whole machine. Each instance notes its cgroups in a lock file of the runtime directory: the next
instance to get that lock knows that the previous owner has ended, and removes the cgroups it left behind. No other
crash recovery is needed.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import secrets
from collections.abc import Sequence
from pathlib import Path

from belljar.jail import cgroups, policy

INSTANCES_MAX = 64
_NOTE_BYTES = 4096
_MACHINE_DIR = Path("/run/belljar")


class Instance:
    """The reservations of this process; `close` releases them."""

    def __init__(self, lock: int, uid_lock: int, uid_base: int) -> None:
        self.name = f"instance-{secrets.token_hex(4)}"
        self.uid_base = uid_base
        self._uid_lock = uid_lock
        self._lock = lock

    def note(self, directories: Sequence[str]) -> None:
        """Record the cgroups that the next owner of this lock must remove if this process crashes."""
        os.pwrite(self._lock, json.dumps({"cgroups": list(directories)}).encode().ljust(_NOTE_BYTES), 0)

    def close(self) -> None:
        """Release the reservations; call it when all recorded cgroups are removed."""
        self.note([])
        os.close(self._lock)
        os.close(self._uid_lock)


def reserve(runtime_dir: Path, first_uid: int) -> Instance:
    """Reserve a range of uids and a lock file, and clean up after every instance that crashed.

    Raises:
        OSError: the directory cannot be used, or too many instances are running.
    """
    runtime_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    own = -1
    for number in range(INSTANCES_MAX):
        path = runtime_dir / f"slot-{number}.lock"
        if own >= 0 and not path.exists():
            break
        lock = _lock(path)
        if lock < 0:
            continue
        _clean_up_after_previous(lock)
        if own < 0:
            own = lock
        else:
            os.close(lock)
    if own < 0:
        raise OSError(errno.EBUSY, f"{INSTANCES_MAX} instances already run from {runtime_dir}")
    try:
        uid_lock, uid_base = _reserve_uids(runtime_dir, first_uid)
    except BaseException:
        os.close(own)
        raise
    return Instance(own, uid_lock, uid_base)


def _lock(path: Path) -> int:
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return -1
    return lock


def _clean_up_after_previous(lock: int) -> None:
    try:
        left = json.loads(os.pread(lock, _NOTE_BYTES, 0).strip() or b"{}").get("cgroups", [])
    except ValueError:
        left = []  # the previous owner died while writing the note, so before it created any cgroup
    cgroups.remove_trees([str(path) for path in left], deadline_seconds=5.0)
    os.pwrite(lock, b"{}".ljust(_NOTE_BYTES), 0)


def _reserve_uids(runtime_dir: Path, first_uid: int) -> tuple[int, int]:
    """Reserve in /run as root, for the whole machine; elsewhere in the runtime directory.

    An unprivileged server uses no uid but its own, so nothing has to be shared between users.
    """
    directory = runtime_dir
    if os.geteuid() == 0 and os.access(_MACHINE_DIR.parent, os.W_OK):
        directory = _MACHINE_DIR
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    for number in range(INSTANCES_MAX):
        base = first_uid + number * policy.UIDS_PER_INSTANCE
        lock = _lock(directory / f"uids-{base}.lock")
        if lock >= 0:
            return lock, base
    raise OSError(errno.EBUSY, f"{INSTANCES_MAX} instances already run on this machine")
