"""How long an interrupted cell is waited for: by the time it had, not by the clock of a machine that gave it none.

A cell that is interrupted needs a few milliseconds of a processor to come back. Where dozens of others want one, too,
that can take seconds, and a session must not be lost for it. So the time in which its processes stood in line for a
processor, as the kernel counts it, is not held against it; but nobody waits for ever.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

GRACE_SECONDS = 5.0
WALL_SECONDS_MAX = 30.0
_LOOK_AGAIN_SECONDS_MIN = 0.05


class InterruptGrace:
    """Begins when it is made."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._begun_at = time.monotonic()
        self._stood_before = {pid: stood_in_line_seconds(pid) for pid in pids}

    def left_seconds(self) -> float:
        """How long to wait before asking again; 0: no longer."""
        elapsed = time.monotonic() - self._begun_at
        stood = max((stood_in_line_seconds(pid) - before for pid, before in self._stood_before.items()), default=0.0)
        left = min(GRACE_SECONDS - elapsed + max(0.0, stood), WALL_SECONDS_MAX - elapsed)
        return max(_LOOK_AGAIN_SECONDS_MIN, left) if left > 0 else 0.0


def stood_in_line_seconds(pid: int) -> float:
    """For how long a process, by its first thread, could have run and was not let; 0 where nobody knows."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0
