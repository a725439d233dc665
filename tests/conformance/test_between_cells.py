"""CPU time and output of a session between its cells are charged to it."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import belljar
from belljar.contract.errors import CannotBranch, SessionEnded
from belljar.settings import Settings

SPIN = """
import os
if os.fork() == 0:
    while True:
        pass
"""
#: Patches the session's process so that it computes for two seconds and refuses whenever it is branched.
SPIN_WHEN_BRANCHED = """
import gc, os, time
gc.unfreeze()
(shell,) = [each for each in gc.get_objects() if type(each) is dict and '_serve_cells' in each and '__file__' in each]
def _branch(peer, order, descriptors):
    until = time.process_time() + 2
    while time.process_time() < until:
        pass
    for each in descriptors:
        os.close(each)
    shell['channel'].send(peer, {}, b'not now')
shell['_branch'] = _branch
"""
DEADLINE_SECONDS = 60.0


@pytest.fixture(scope="module")
def box(settings: Settings) -> Iterator[belljar.Sandbox]:
    with belljar.Sandbox(settings=settings) as opened:
        yield opened


def child_cpu_seconds(session: Any) -> float:
    """The CPU time of the child started by `SPIN`."""
    fields = session.run("import glob\nprint(*[open(p).read() for p in glob.glob('/proc/[0-9]*/stat')], sep='\\n')")
    used = [sum(map(int, line.rsplit(")", 1)[1].split()[11:13])) for line in fields.stdout.splitlines() if line]
    return max(used) / 100


def test_frequent_cells_do_not_hide_background_work(box: belljar.Sandbox) -> None:
    with box.session(limits={"cpu_seconds": 2}) as session:
        session.run(SPIN)
        deadline = time.monotonic() + DEADLINE_SECONDS
        with pytest.raises(SessionEnded, match=r"timeout|processor time"):
            while time.monotonic() < deadline:
                used = child_cpu_seconds(session)
                assert used < 8, f"{used} seconds of 2"
                time.sleep(0.5)  # shorter than the interval at which idle sessions are checked


def test_an_idle_session_that_keeps_working_is_ended(box: belljar.Sandbox) -> None:
    with box.session(limits={"cpu_seconds": 1}) as session:
        session.run(SPIN)
        deadline = time.monotonic() + DEADLINE_SECONDS
        with pytest.raises(SessionEnded, match=r"timeout|processor time"):
            while time.monotonic() < deadline:
                session.state()
                time.sleep(0.1)


def test_work_during_branching_is_charged(box: belljar.Sandbox) -> None:
    with box.session(limits={"cpu_seconds": 1}) as session:
        assert session.run(SPIN_WHEN_BRANCHED).ok
        with pytest.raises(SessionEnded, match=r"timeout|processor time"):
            for _ in range(3):
                with contextlib.suppress(CannotBranch):
                    session.branch()
                assert session.run("1").ok


def test_many_small_cells_and_branches_cost_nothing(box: belljar.Sandbox) -> None:
    with box.session(limits={"cpu_seconds": 0.5}) as session:
        for _ in range(300):
            assert session.run("1").ok
        for _ in range(15):
            for branch in session.branch(2):
                branch.close()
        assert session.run("print(1)").stdout == "1\n"


def test_single_bytes_between_cells_are_joined(box: belljar.Sandbox, host: Any) -> None:
    code = """
import fcntl, os, threading
def write():
    begin.wait()  # then standard output is the session's own, and no cell's
    fcntl.fcntl(1, fcntl.F_SETFL, fcntl.fcntl(1, fcntl.F_GETFL) | os.O_DIRECT)
    for _ in range(200_000):
        os.write(1, b"x")
    open("done", "w").close()
begin = threading.Event()
threading.Thread(target=write).start()
threading.Timer(0.3, begin.set).start()
"""
    limits = {"cpu_seconds": 60, "output_kb": 2048, "memory_mb": 256}
    with box.session(limits=limits) as session:
        before = resident_bytes()
        assert session.run(code).ok
        host.wait_until(lambda: any(each.path == "done" for each in session.files()), "it has written", 120)
        after = resident_bytes()
        outcome = session.run("1")
        assert outcome.stderr.count("x") > 150_000  # some of it may have arrived during the first cell
        assert after - before < 6 << 20, f"{(after - before) >> 10} KiB for 200 kB"


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_a_cell_in_packet_mode_loses_nothing(box: belljar.Sandbox) -> None:
    code = (
        "import fcntl, os\n"
        "fcntl.fcntl(1, fcntl.F_SETFL, fcntl.fcntl(1, fcntl.F_GETFL) | os.O_DIRECT)\n"
        "for piece in (b'a', b'b', b'c'):\n    os.write(1, piece)"
    )
    with box.session() as session:
        assert session.run(f"{code};").stdout == "abc"


def test_a_cancelled_cell_leaves_no_output_behind(settings: Settings) -> None:
    async def scene() -> list[tuple[str, str]]:
        async with belljar.AsyncSandbox(settings=settings) as box, box.session() as session:
            seen = []
            for _ in range(10):
                cell = asyncio.ensure_future(session.run("print('given up')"))
                await asyncio.sleep(0)
                while not ((await session.state()).is_busy or cell.done()):
                    await asyncio.sleep(0)
                cell.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await cell
                outcome = await session.run("pass")
                seen.append((outcome.stdout, outcome.stderr))
            return seen

    assert asyncio.run(scene()) == [("", "")] * 10
