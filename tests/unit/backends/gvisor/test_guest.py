"""The host's handle of a guest inside gVisor, when descriptors run out or its container is gone."""

from __future__ import annotations

import asyncio
import os
import resource

import pytest

from belljar.backends.gvisor.guest import RelayedGuest
from belljar.contract.errors import ZygoteDied
from belljar.jail import live_files


@pytest.mark.parametrize("left", range(8))
def test_a_guest_without_descriptors_leaks_none(left: int) -> None:
    async def open_one() -> None:
        before = sorted(int(each) for each in os.listdir("/proc/self/fd"))
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        free = [number for number in range(before[-1] + 20) if number not in before]
        resource.setrlimit(resource.RLIMIT_NOFILE, (free[left], hard))
        try:
            with pytest.raises(OSError, match="Too many open files"):
                RelayedGuest(1, "bare", lambda message, blob: None)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert sorted(int(each) for each in os.listdir("/proc/self/fd")) == before

    asyncio.run(open_one())


def test_the_files_of_a_lost_guest_are_refused_at_once() -> None:
    async def read() -> None:
        guest = RelayedGuest(1, "bare", lambda message, blob: None)
        try:
            guest.lose()
            async with asyncio.timeout(5):
                with pytest.raises(ZygoteDied):
                    await guest.on_work_dir(live_files.read, "a", 1)
        finally:
            guest.close()

    asyncio.run(read())
