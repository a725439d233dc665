"""Guests wait before there is a program: as many as the settings say, and whoever was used is replaced."""

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
def test_whoever_was_used_is_replaced(box: belljar.Sandbox, programs: int) -> None:
    """Be they few, which are forked when it is quiet, or many, which are forked in a row."""
    _wait_until_full(box)
    assert [box.run(f"print({number})").stdout for number in range(programs)] == [f"{n}\n" for n in range(programs)]
    _wait_until_full(box)
    time.sleep(0.2)  # nothing to wait for: one too many would come about now
    assert _ready(box) == _READY


def test_many_at_once_leave_as_many_ready(box: belljar.Sandbox) -> None:
    outcomes = list(box.run_many(f"print({number})" for number in range(60)))
    assert [each.stdout for each in outcomes] == [f"{number}\n" for number in range(60)]
    _wait_until_full(box)


def test_pages_copied_ahead_are_counted_as_the_interpreters(box: belljar.Sandbox) -> None:
    """What a guest copies before its program has come is in its jail's cgroup, and no program pays for it."""
    outcome = box.run("x = bytearray(15 << 20); print(len(x))", limits={"memory_mb": 16})
    assert outcome.stdout == f"{15 << 20}\n", outcome
    assert box.run("x = bytearray(24 << 20)", limits={"memory_mb": 16}).status == "out_of_memory"


#: What a guest writes to is copied before its program comes; without that it would be more than a hundred pages.
_FAULTS_LEFT_MAX = 40


def test_few_pages_are_left_to_copy_once_the_program_comes(settings: Settings) -> None:
    async def count() -> tuple[int, int]:
        async with local_pool.opened(settings) as (sandbox, pool):
            await sandbox.run(Execution(code="pass"))
            async with asyncio.timeout(_DEADLINE_SECONDS):
                while len(pool.guests._ready["bare"]) < settings.pool.ready_guests:
                    await asyncio.sleep(0.01)
            await asyncio.sleep(0.2)  # nothing tells that the last of them has come to rest
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
