"""One timer serves all runs: each is monitored once its own time has passed, unless it has ended before."""

from __future__ import annotations

import asyncio

from belljar.backends.local.run.output import SettleTimer


class Run:
    def __init__(self) -> None:
        self.settled = asyncio.Event()

    def settle_in(self) -> None:
        self.settled.set()


async def play() -> None:
    timer = SettleTimer()
    late, early, ended, last = Run(), Run(), Run(), Run()
    timer.wait_with(late, 0.04)
    timer.wait_with(early, 0.01)  # earlier than the timer that is set
    timer.wait_with(ended, 0.02)
    timer.wait_with(last, 0.06)
    timer.forget(ended)
    async with asyncio.timeout(30):
        await early.settled.wait()
        await last.settled.wait()
    assert late.settled.is_set()
    assert not ended.settled.is_set()
    timer.forget(last)  # a run that is monitored already may be forgotten, too
    timer.wait_with(ended, 0.01)  # after the timer was idle
    async with asyncio.timeout(30):
        await ended.settled.wait()
    timer.wait_with(late, 60.0)
    timer.close()


def test_each_run_is_monitored_once_its_time_has_passed() -> None:
    asyncio.run(play())
