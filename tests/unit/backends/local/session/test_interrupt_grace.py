"""The grace period of an interrupted cell does not count time in which it waited for a CPU."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from belljar.backends.local.session import cell_run

if TYPE_CHECKING:
    from tests.conftest import Host


@contextlib.contextmanager
def running(code: str) -> Iterator[int]:
    """A process on the same CPU as every other one started here."""
    core = min(os.sched_getaffinity(0))
    with subprocess.Popen([sys.executable, "-c", f"import os; os.sched_setaffinity(0, {{{core}}})\n{code}"]) as process:
        try:
            yield process.pid
        finally:
            process.kill()


def test_waiting_for_a_cpu_does_not_count(host: Host) -> None:
    with running("while True: pass") as first, running("while True: pass"):
        began = time.monotonic()
        waiting = cell_run.InterruptGrace([first])
        host.wait_until(lambda: cell_run.cpu_wait_seconds(first) > 0.5, "it has waited for a CPU")
        left, elapsed = waiting.left_seconds(), time.monotonic() - began
        assert left > cell_run.GRACE_SECONDS - elapsed + 0.1


def test_sleeping_counts(monkeypatch: pytest.MonkeyPatch, host: Host) -> None:
    monkeypatch.setattr(cell_run, "GRACE_SECONDS", 0.5)
    with running("import time; time.sleep(600)") as sleeping:
        waiting = cell_run.InterruptGrace([sleeping, 2**22 + 1])  # and a pid that does not exist
        host.wait_until(lambda: waiting.left_seconds() == 0.0, "its time is up")


def test_the_grace_period_is_bounded(monkeypatch: pytest.MonkeyPatch, host: Host) -> None:
    monkeypatch.setattr(cell_run, "WALL_SECONDS_MAX", 0.5)
    with running("while True: pass") as first, running("while True: pass"):
        waiting = cell_run.InterruptGrace([first])
        host.wait_until(lambda: waiting.left_seconds() == 0.0, "its time is up")
