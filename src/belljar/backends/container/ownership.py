"""Which process owns a container: labels that let the next Belljar remove what a dead one has left.

A pid alone proves nothing: it is reused. Together with its start time it does, as long as both are read in the same pid
namespace of the same boot. Containers of another machine or namespace are never touched.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path

LABEL = "org.belljar.owner"
_PLACE, _PID, _BORN = f"{LABEL}.place", f"{LABEL}.pid", f"{LABEL}.born"


def labels(instance: str) -> dict[str, str]:
    """The labels of every container of this process."""
    pid = os.getpid()
    return {LABEL: instance, _PLACE: _place(), _PID: str(pid), _BORN: _born(pid)}


def is_orphan(marked: Mapping[str, str]) -> bool:
    """Whether the process that made a container with these labels ran on this machine, and is gone."""
    if marked.get(_PLACE) != _place() or not marked.get(_PID, "").isdigit():
        return False
    return _born(int(marked[_PID])) != marked.get(_BORN)


def new_directory(parent: Path) -> Path:
    """The path of a new directory, whose name says which process owns it."""
    pid = os.getpid()
    return parent / f"{pid}-{_born(pid)}-{secrets.token_hex(4)}"


def sweep(parent: Path) -> None:
    """Remove the directories, and the files beside them, of processes that are gone."""
    if not parent.is_dir():
        return
    for path in parent.iterdir():
        pid, _, rest = path.name.partition("-")
        if pid.isdigit() and _born(int(pid)) != rest.partition("-")[0]:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def _place() -> str:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{Path('/proc/self/ns/pid').readlink()}"


def _born(pid: int) -> str:
    """When a process started, in the kernel's ticks; empty if it does not exist."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return text.rpartition(")")[2].split()[19]
