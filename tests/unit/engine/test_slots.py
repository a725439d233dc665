"""Slots are fair, bounded and never lost, whatever is cancelled and when."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from belljar.contract.errors import Draining, QueueFull
from belljar.engine.slots import SlotQueue


class Crowd:
    """Tasks that wait for a slot, hold it until they are released, and return it."""

    def __init__(self, max_running: int, max_queued: int) -> None:
        self.queue = SlotQueue(max_running, max_queued)
        self.visits: list[asyncio.Task[None]] = []
        self.holding: list[tuple[str, asyncio.Event]] = []
        self.served: list[str] = []
        self.refused: list[str] = []

    def send(self, *callers: str) -> None:
        self.visits += [asyncio.ensure_future(self._visit(caller)) for caller in callers]

    async def _visit(self, caller: str) -> None:
        try:
            await self.queue.acquire(caller)
        except QueueFull:
            self.refused.append(caller)
            return
        held = caller, asyncio.Event()
        self.served.append(caller)
        self.holding.append(held)
        try:
            await held[1].wait()
        finally:
            self.holding.remove(held)
            self.queue.release()

    async def dismiss_all(self) -> None:
        """Release tasks until none is left; a lost slot or a starving waiter would exceed the number of rounds."""
        for _ in range(10 * len(self.visits) + 10):
            for _, leave in self.holding:
                leave.set()
            await tick()
        assert all(visit.done() for visit in self.visits), "an execution was never served"


async def tick(times: int = 1) -> None:
    for _ in range(times):
        await asyncio.sleep(0)


def in_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run an async test without a plug-in."""

    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))  # type: ignore[arg-type]

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


STEPS = st.one_of(
    st.tuples(st.just("arrive"), st.sampled_from("abc")),
    st.tuples(st.just("leave"), st.integers(0, 3)),
    st.tuples(st.just("cancel"), st.integers(0, 9)),
    st.tuples(st.just("tick"), st.integers(1, 2)),
)


@settings(max_examples=400, deadline=None)
@given(max_running=st.integers(1, 3), max_queued=st.integers(0, 5), steps=st.lists(STEPS, max_size=60))
def test_no_interleaving_loses_a_slot_or_gives_one_too_many(
    max_running: int, max_queued: int, steps: list[tuple[str, Any]]
) -> None:
    asyncio.run(follow(Crowd(max_running, max_queued), steps))


async def follow(crowd: Crowd, steps: Iterable[tuple[str, Any]]) -> None:
    queue = crowd.queue
    for what, which in steps:
        if what == "arrive":
            crowd.send(which)
        elif what == "leave" and crowd.holding:
            crowd.holding[which % len(crowd.holding)][1].set()
        elif what == "cancel" and (present := [visit for visit in crowd.visits if not visit.done()]):
            present[which % len(present)].cancel()
        elif what == "tick":
            await tick(which)
        assert len(crowd.holding) <= queue.running <= queue.max_running
        assert 0 <= queue.depth <= queue.max_queued
        assert queue.running == queue.max_running or not queue.depth, "a slot is free while an execution waits"
    await crowd.dismiss_all()
    assert (queue.running, queue.depth) == (0, 0)
    assert [queue.take_free() for _ in range(queue.max_running + 1)] == [True] * queue.max_running + [False]


@settings(max_examples=200, deadline=None)
@given(callers=st.lists(st.sampled_from("abcd"), min_size=1, max_size=40), max_running=st.integers(1, 4))
def test_callers_take_turns_and_each_is_served_in_order(callers: list[str], max_running: int) -> None:
    lines: dict[str, deque[int]] = {}
    for number, caller in enumerate(callers):
        lines.setdefault(caller, deque()).append(number)
    expected = []
    while lines:
        caller, line = next(iter(lines.items()))
        expected.append(line.popleft())
        del lines[caller]
        if line:
            lines[caller] = line
    assert asyncio.run(order_of_turns(callers, max_running)) == expected


async def order_of_turns(callers: list[str], max_running: int) -> list[int]:
    queue = SlotQueue(max_running, len(callers))
    for _ in range(max_running):
        queue.take_free()
    served: list[int] = []

    async def wait(number: int, caller: str) -> None:
        await queue.acquire(caller)
        served.append(number)

    waiting = [asyncio.create_task(wait(number, caller)) for number, caller in enumerate(callers)]
    await tick()
    for _ in waiting:
        queue.release()
        await tick()
    await asyncio.gather(*waiting)
    return served


@in_loop
async def test_a_free_slot_is_taken_without_waiting() -> None:
    queue = SlotQueue(1, 1)
    taking = queue.acquire("a")
    with pytest.raises(StopIteration):
        taking.send(None)
    assert queue.running == 1


@in_loop
async def test_a_caller_with_many_waiting_runs_delays_another_by_one_turn() -> None:
    crowd = Crowd(1, 2000)
    crowd.send(*["greedy"] * 1000)
    await tick()
    crowd.send("modest")
    await tick()
    for _ in range(2):
        crowd.holding[0][1].set()
        await tick(3)
    assert "modest" in crowd.served[:3]
    for visit in crowd.visits:
        visit.cancel()
    await asyncio.gather(*crowd.visits, return_exceptions=True)


@in_loop
async def test_a_full_queue_refuses_the_next_run() -> None:
    crowd = Crowd(1, 2)
    crowd.send("a", "a", "a", "a")
    await tick()
    assert crowd.refused == ["a"]
    assert crowd.queue.depth == 2
    await crowd.dismiss_all()


@in_loop
async def test_a_queue_full_of_one_callers_runs_makes_room_for_another_caller() -> None:
    crowd = Crowd(1, 3)
    crowd.send("greedy", "greedy", "greedy", "greedy", "modest")
    await tick(2)
    assert crowd.refused == ["greedy"]
    assert crowd.visits[3].done(), "the newest of the longest line pays"
    crowd.send("greedy")
    await tick()
    assert crowd.refused == ["greedy", "greedy"], "a caller with more waiting takes no other caller's place"
    await crowd.dismiss_all()


@in_loop
async def test_equal_callers_do_not_displace_each_other() -> None:
    crowd = Crowd(1, 4)
    crowd.send("a", "a", "a", "b", "b")
    await tick()
    crowd.send("a", "b", "a", "b")
    await tick(2)
    assert crowd.refused == ["a", "b", "a", "b"]
    await crowd.dismiss_all()


@in_loop
async def test_no_run_is_displaced_if_that_only_reverses_the_imbalance() -> None:
    crowd = Crowd(1, 3)
    crowd.send("a", "a", "a", "b")
    await tick()
    crowd.send("b")
    await tick(2)
    assert crowd.refused == ["b"]
    await crowd.dismiss_all()


@in_loop
async def test_a_slot_handed_to_a_cancelled_waiter_is_passed_on() -> None:
    queue = SlotQueue(1, 10)
    queue.take_free()
    first, second = (asyncio.create_task(queue.acquire(caller)) for caller in "ab")
    await tick()
    queue.release()
    first.cancel()
    await tick(3)
    assert first.cancelled()
    assert second.done()
    assert queue.running == 1


@in_loop
async def test_many_cancelled_waiters_leave_nothing_behind() -> None:
    queue = SlotQueue(1, 10)
    queue.take_free()
    for _ in range(1000):
        waiting = asyncio.create_task(queue.acquire("a"))
        await tick()
        waiting.cancel()
        await tick()
    assert queue.depth == 0
    queue.release()
    assert queue.running == 0


@in_loop
async def test_closing_refuses_waiting_and_new_runs_but_keeps_running_ones() -> None:
    queue = SlotQueue(1, 10)
    queue.take_free()
    waiting = [asyncio.create_task(queue.acquire(caller)) for caller in "aab"]
    await tick()
    queue.close()
    for result in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(result, Draining)
    with pytest.raises(Draining):
        await queue.acquire("a")
    assert (queue.running, queue.depth) == (1, 0)
    queue.release()
    assert not queue.take_free()
    assert queue.running == 0


@pytest.mark.parametrize(
    ("turn_seconds", "waiting", "expected_seconds"),
    [
        pytest.param(0.001, 100, 1.0, id="soon_is_a_second"),
        pytest.param(0.1, 100, 10.0, id="the_whole_line_at_the_recent_rate"),
        pytest.param(5.0, 100, 60.0, id="never_more_than_a_minute"),
    ],
)
def test_retry_after_follows_the_rate_of_turns(
    monkeypatch: pytest.MonkeyPatch, turn_seconds: float, waiting: int, expected_seconds: float
) -> None:
    now = [1000.0]
    monkeypatch.setattr("belljar.engine.slots.time.monotonic", lambda: now[0])

    @in_loop
    async def scene() -> None:
        queue = SlotQueue(1, waiting)
        queue.take_free()
        tasks = [asyncio.create_task(queue.acquire()) for _ in range(waiting)]
        await tick()
        for _ in range(20):
            now[0] += turn_seconds
            queue.release()
            tasks.append(asyncio.create_task(queue.acquire()))
            await tick()
        with pytest.raises(QueueFull) as refused:
            await queue.acquire()
        assert refused.value.retry_after_seconds == pytest.approx(expected_seconds)
        queue.close()
        await asyncio.gather(*tasks, return_exceptions=True)

    scene()
