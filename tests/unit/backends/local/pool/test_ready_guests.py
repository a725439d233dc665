"""Guests are forked ahead of their programs: as many as the settings say, and used ones are replaced."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import local_pool
import pytest

import belljar
from belljar.contract.execution import Execution
from belljar.settings import Settings, load

_READY = 6
_DEADLINE_SECONDS = 20.0


@pytest.fixture(scope="module")
def box() -> Iterator[belljar.Sandbox]:
    with belljar.Sandbox(settings=load(flags={"pool.ready_guests": _READY})) as opened:
        yield opened


def _ready(box: belljar.Sandbox) -> int:
    return int(box.facts()["sandbox"]["ready_guests"])


def _wait_until_full(box: belljar.Sandbox) -> None:
    deadline = time.monotonic() + _DEADLINE_SECONDS
    while _ready(box) != _READY:
        assert time.monotonic() < deadline, box.facts()
        time.sleep(0.01)


@pytest.mark.parametrize("programs", [1, 2, 3, 4, 5, 6, 7, 40])
def test_used_guests_are_replaced(box: belljar.Sandbox, programs: int) -> None:
    """A few are forked once nothing runs, many in a row."""
    _wait_until_full(box)
    assert [box.run(f"print({number})").stdout for number in range(programs)] == [f"{n}\n" for n in range(programs)]
    _wait_until_full(box)
    time.sleep(0.2)  # no event to wait for: a guest too many would appear about now
    assert _ready(box) == _READY


def test_many_concurrent_runs_leave_the_pool_full(box: belljar.Sandbox) -> None:
    outcomes = list(box.run_many(f"print({number})" for number in range(60)))
    assert [each.stdout for each in outcomes] == [f"{number}\n" for number in range(60)]
    _wait_until_full(box)


def test_pages_copied_ahead_are_not_charged_to_the_program(box: belljar.Sandbox) -> None:
    """Pages that a guest copies before its program arrives are in its jail's cgroup, but count as the interpreter's."""
    outcome = box.run("x = bytearray(15 << 20); print(len(x))", limits={"memory_mb": 16})
    assert outcome.stdout == f"{15 << 20}\n", outcome
    assert box.run("x = bytearray(24 << 20)", limits={"memory_mb": 16}).status == "out_of_memory"


#: The pages that a guest writes to are copied before its program arrives; otherwise more than a hundred would be left.
_FAULTS_LEFT_MAX = 40


def test_few_pages_are_left_to_copy_when_the_program_arrives(settings: Settings) -> None:
    async def count() -> tuple[int, int]:
        async with local_pool.opened(settings) as (sandbox, pool):
            await sandbox.run(Execution(code="pass"))
            async with asyncio.timeout(_DEADLINE_SECONDS):
                while len(pool.guests._ready["bare"]) < settings.pool.ready_guests:
                    await asyncio.sleep(0.01)
            await asyncio.sleep(0.2)  # no event says that the last guest has finished its preparation
            cgroup = pool.guests._ready["bare"][0].jail.jail_slot.cgroup
            assert cgroup is not None
            async with asyncio.timeout(_DEADLINE_SECONDS):
                while not cgroup.processes():
                    await asyncio.sleep(0.01)
            [pid] = cgroup.processes()
            waiting = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[7]
            seen = await sandbox.run(Execution(code="print(open('/proc/self/stat').read().split()[9])"))
            return int(waiting), int(seen.stdout)

    waiting, running = asyncio.run(count())
    assert 0 < running - waiting < _FAULTS_LEFT_MAX, (waiting, running)
