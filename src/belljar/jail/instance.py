"""What one running Belljar claims on a machine: a range of host uids and a name for its cgroups.

A claim is a locked file. The kernel drops the lock when the process dies, however it dies, so whoever gets the lock
next knows that the earlier owner is gone and removes what it left: that is the whole of crash recovery.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Sequence
from pathlib import Path

from belljar.jail import cgroups, policy

INSTANCES_MAX = 64


class Instance:
    """A claimed slot; `close` gives it back."""

    def __init__(self, number: int, lock: int, uid_base: int) -> None:
        self.number = number
        self.uid_base = uid_base + number * policy.UIDS_PER_INSTANCE
        self._lock = lock

    def note(self, directories: Sequence[str]) -> None:
        """Write down what a successor must remove should we die."""
        os.pwrite(self._lock, json.dumps({"cgroups": list(directories)}).encode().ljust(4096), 0)

    def close(self) -> None:
        """Give the slot back; everything noted has been removed."""
        self.note([])
        os.close(self._lock)


def claim(runtime_dir: Path, uid_base: int) -> Instance:
    """Lock the first free slot, and remove what a dead owner left in it.

    Raises:
        OSError: the directory cannot be used, or every slot is taken.
    """
    runtime_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    for number in range(INSTANCES_MAX):
        path = runtime_dir / f"slot-{number}.lock"
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            continue
        _clean_up_after_previous(lock)
        return Instance(number, lock, uid_base)
    raise OSError(f"{INSTANCES_MAX} instances already run from {runtime_dir}")


def _clean_up_after_previous(lock: int) -> None:
    try:
        left = json.loads(os.pread(lock, 4096, 0) or b"{}").get("cgroups", [])
    except ValueError:
        left = []  # it died while writing; its cgroups, if any, are empty and harmless
    cgroups.remove_trees([str(path) for path in left], deadline_seconds=5.0)
