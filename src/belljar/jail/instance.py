"""What one running Belljar claims on a machine: a range of host uids, and a name for its cgroups.

Both claims are locked files, and the kernel drops a lock with the process, however it ends. Uids are claimed in one
place for the whole machine. Cgroups are noted in the runtime directory: whoever gets that lock next knows that the
earlier owner is gone and removes what it left. That is the whole of crash recovery.
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
    """A claimed place on this machine; `close` gives it back."""

    def __init__(self, lock: int, uid_claim: int, uid_base: int) -> None:
        self.name = f"instance-{secrets.token_hex(4)}"
        self.uid_base = uid_base
        self._uid_claim = uid_claim
        self._lock = lock

    def note(self, directories: Sequence[str]) -> None:
        """Write down what a successor must remove should we die."""
        os.pwrite(self._lock, json.dumps({"cgroups": list(directories)}).encode().ljust(_NOTE_BYTES), 0)

    def close(self) -> None:
        """Give the place back; everything noted has been removed."""
        self.note([])
        os.close(self._lock)
        os.close(self._uid_claim)


def claim(runtime_dir: Path, first_uid: int) -> Instance:
    """Claim a range of uids and a file for notes, and clean up after every owner that died.

    Raises:
        OSError: the directory cannot be used, or too many instances run.
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
        uid_claim, uid_base = _claim_uids(runtime_dir, first_uid)
    except BaseException:
        os.close(own)
        raise
    return Instance(own, uid_claim, uid_base)


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
        left = []  # it died while writing, before it made any
    cgroups.remove_trees([str(path) for path in left], deadline_seconds=5.0)
    os.pwrite(lock, b"{}".ljust(_NOTE_BYTES), 0)


def _claim_uids(runtime_dir: Path, first_uid: int) -> tuple[int, int]:
    """As a plain user there is nothing to share; a machine without /run shares within the runtime directory."""
    directory = runtime_dir
    if os.geteuid() == 0 and os.access(_MACHINE_DIR.parent, os.W_OK):
        directory = _MACHINE_DIR
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    for number in range(INSTANCES_MAX):
        base = first_uid + number * policy.UIDS_PER_INSTANCE
        claim = _lock(directory / f"uids-{base}.lock")
        if claim >= 0:
            return claim, base
    raise OSError(errno.EBUSY, f"{INSTANCES_MAX} instances already run on this machine")
