"""How much memory this process may use: the machine's, or less where a control group says so."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")


def memory_bytes() -> int:
    """The least of what the machine has and its control groups allow."""
    return min([os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *_limits()])


def _limits() -> Iterator[int]:
    for file in _limit_files():
        with contextlib.suppress(OSError, ValueError):  # "max", or a group that is not shown to us
            yield int(file.read_text())


def _limit_files() -> Iterator[Path]:
    """Of our group and those above it. A container often shows its own as the root."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "memory" not in controllers.split(","):
                continue
            root, name = (_CGROUPS / "memory", "memory.limit_in_bytes") if controllers else (_CGROUPS, "memory.max")
            parts = [each for each in path.split("/") if each not in ("", "..")]
            for depth in range(len(parts), -1, -1):
                yield root.joinpath(*parts[:depth], name)
