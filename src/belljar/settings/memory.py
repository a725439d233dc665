"""How much memory this process may use: all of the machine's, or what its control group allows."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")


def memory_bytes() -> int:
    """The smallest of the machine's memory and the limits of our control groups."""
    return min([os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *_limits()])


def _limits() -> Iterator[int]:
    for file in _limit_files():
        with contextlib.suppress(OSError, ValueError):  # "max", or a group that we cannot see
            yield int(file.read_text())


def _limit_files() -> Iterator[Path]:
    """The limit files of our group and its parents. A container often shows its own group as the root."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "memory" not in controllers.split(","):
                continue
            root, name = (_CGROUPS / "memory", "memory.limit_in_bytes") if controllers else (_CGROUPS, "memory.max")
            parts = [each for each in path.split("/") if each not in ("", "..")]
            for depth in range(len(parts), -1, -1):
                yield root.joinpath(*parts[:depth], name)
