"""A process that has no descriptors left says so, keeps nothing open, and goes on when it has some again."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
from collections.abc import Iterator

import belljar
from belljar.contract.errors import BelljarError
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


async def _run_all(box: belljar.AsyncSandbox) -> list[belljar.Outcome | BaseException]:
    programs = (box.run("import time; time.sleep(0.2); print(1)") for _ in range(AT_ONCE))
    return await asyncio.gather(*programs, return_exceptions=True)


@contextlib.contextmanager
def _no_descriptors_left() -> Iterator[None]:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    hoard: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 64, limit[1]))
    try:
        with contextlib.suppress(OSError):
            while True:
                hoard.append(os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC))
        yield
    finally:
        for each in hoard:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
