"""One timer waits with all runs: each settles in when its own time has come, and not after it has ended."""

from __future__ import annotations

import asyncio

from belljar.backends.local.run.output import SettleTimer


class Run:
    def __init__(self) -> None:
        self.settled = asyncio.Event()

    def settle_in(self) -> None:
        self.settled.set()


async def play() -> None:
    patience = SettleTimer()
    late, early, ended, last = Run(), Run(), Run(), Run()
    patience.wait_with(late, 0.04)
    patience.wait_with(early, 0.01)  # before the timer that is set
    patience.wait_with(ended, 0.02)
    patience.wait_with(last, 0.06)
    patience.forget(ended)
    async with asyncio.timeout(30):
        await early.settled.wait()
        await last.settled.wait()
    assert late.settled.is_set()
    assert not ended.settled.is_set()
    patience.forget(last)  # who has settled in may be forgotten as well
    patience.wait_with(ended, 0.01)  # after a rest
    async with asyncio.timeout(30):
        await ended.settled.wait()
    patience.wait_with(late, 60.0)
    patience.close()


def test_each_settles_in_when_its_time_has_come() -> None:
    asyncio.run(play())
