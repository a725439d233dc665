"""A process that has no descriptors left says so, keeps nothing open, and goes on when it has some again."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import resource
from collections.abc import Iterator

import local_world
import pytest

import belljar
from belljar.backends.local.standby import Standby, Waiting
from belljar.contract.errors import BelljarError, SandboxFault
from belljar.settings import Settings

AT_ONCE = 12


def test_without_descriptors_runs_are_refused_and_nothing_is_lost(settings: Settings) -> None:
    async def scene() -> None:
        async with belljar.AsyncSandbox(settings=settings) as box:
            await _run_all(box)
            before = len(os.listdir("/proc/self/fd"))
            with _no_descriptors_left():
                refused = [each for each in await _run_all(box) if isinstance(each, BaseException)]
            assert refused
            assert all(isinstance(each, BelljarError) for each in refused), refused
            for _ in range(3):
                outcomes = await _run_all(box)
                assert [each.stdout for each in outcomes if isinstance(each, belljar.Outcome)] == ["1\n"] * AT_ONCE
            assert len(os.listdir("/proc/self/fd")) < before + 3 * AT_ONCE

    asyncio.run(scene())


@pytest.mark.parametrize("spare", [0, 2, 4, 6])
def test_a_cell_that_finds_no_descriptors_leaves_none_open_and_the_session_goes_on(
    settings: Settings, spare: int
) -> None:
    nothing_ahead = dataclasses.replace(settings, pool=dataclasses.replace(settings.pool, ready_guests=0))

    async def scene() -> None:
        async with belljar.AsyncSandbox(settings=nothing_ahead) as box, box.session() as session:
            assert (await session.run("x = 1")).ok
            before = await local_world.settled_descriptors()
            with _no_descriptors_left(spare):
                if spare < 6:  # for three pipes
                    with pytest.raises(SandboxFault, match="Too many open files"):
                        await session.run("x")
                else:
                    assert (await session.run("x")).ok
            assert (await session.run("print(x)")).stdout == "1\n"
            async with asyncio.timeout(10):  # a cell's own pipes are closed when the last byte was read
                while local_world.descriptors() - before:
                    await asyncio.sleep(0.01)

    asyncio.run(scene())


@pytest.mark.parametrize("spare", [0, 2, 4])
def test_a_process_to_wait_that_finds_no_descriptors_leaves_none_open(settings: Settings, spare: int) -> None:
    async def scene() -> None:
        async with local_world.opened(settings) as (_, world):
            guest = await world.lease("bare", settings.default_limits)
            standby = Standby(argv=("true",), path="/bin/true", env=(), limits=settings.default_limits)
            try:
                before = len(os.listdir("/proc/self/fd"))
                with _no_descriptors_left(spare):
                    if spare < 4:
                        with pytest.raises(OSError, match="Too many open files") as caught:
                            Waiting(world, guest, standby)
                    else:
                        Waiting(world, guest, standby).close()
                assert len(os.listdir("/proc/self/fd")) == before
                assert spare == 4 or caught.tb  # which keeps what it had made alive
            finally:
                world.release(guest)

    asyncio.run(scene())


async def _run_all(box: belljar.AsyncSandbox) -> list[belljar.Outcome | BaseException]:
    programs = (box.run("import time; time.sleep(0.2); print(1)") for _ in range(AT_ONCE))
    return await asyncio.gather(*programs, return_exceptions=True)


@contextlib.contextmanager
def _no_descriptors_left(spare: int = 0) -> Iterator[None]:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    hoard: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 64, limit[1]))
    try:
        with contextlib.suppress(OSError):
            while True:
                hoard.append(os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC))
        for _ in range(spare):
            os.close(hoard.pop())
        yield
    finally:
        for each in hoard:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
