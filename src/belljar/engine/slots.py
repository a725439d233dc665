"""A bounded, fair queue for a fixed number of running slots, and the executions in it.

Executions of one caller are served in order. Callers are served in turn: one with a thousand waiting delays another
with a single program by one program, not by a thousand.

When the queue is full, the caller with the most waiting pays: its newest waiter is refused to make room for a caller
with fewer. Otherwise one caller could fill the whole queue, and all others would be refused.

A slot that becomes free is handed to the next waiter directly; so a slot is free only if no execution waits, and can be
taken without an `await`. There are no tasks here and no locks: one event loop owns a queue. Every operation takes
constant time, cancelling included.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any

from belljar.contract.backend import Watcher
from belljar.contract.errors import Draining, InvalidExecution, QueueFull
from belljar.contract.execution import Evidence, Execution, Outcome
from belljar.engine.outcomes import DECODED_BYTES, judge, new_id

_RETRY_SECONDS_MIN = 1.0
_RETRY_SECONDS_MAX = 60.0
_GAP_WEIGHT = 1 / 32  # how much the newest gap between two handovers changes the estimate

Work = Callable[[Execution, Watcher | None], Awaitable[Evidence]]

_Line = OrderedDict[asyncio.Future[None], None]  # ordered, and any member can leave in constant time


class SlotQueue:
    """`max_running` slots, and a line for each caller with at most `max_queued` waiters in all.

    Invariants:
        A slot is free only if no execution waits.
        `_lines` holds a caller exactly while it has waiters, in the order in which callers are served next.
        `_by_length[n]` holds the callers with n waiting, and `_longest` is its largest key, or 0.
        Every waiter that got a result owns a slot, whether its task has noticed yet or not.
    """

    def __init__(self, max_running: int, max_queued: int) -> None:
        self.max_running = max_running
        self.max_queued = max_queued
        self.running = 0
        self.depth = 0
        self.closed = False
        self._lines: OrderedDict[str, _Line] = OrderedDict()
        self._by_length: dict[int, OrderedDict[str, None]] = {}
        self._longest = 0
        self._gap_seconds = 0.0  # between two handovers while executions wait
        self._last_turn = 0.0

    def take_free(self) -> bool:
        """Take a slot if one is free; after True, call `release` once."""
        if self.running >= self.max_running or self.closed:
            return False
        self.running += 1
        return True

    async def acquire(self, caller: str = "") -> None:
        """Wait for a slot; afterwards, call `release` once.

        Raises:
            QueueFull: the queue is full, or a caller with fewer waiting needed the place.
            Draining: the queue was closed.
        """
        if self.take_free():
            return
        waiter = self._join(caller)
        try:
            await waiter
        except BaseException:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self.release()  # the slot arrived in the same moment as the cancellation
            else:
                self._leave(caller, waiter)
            raise

    def release(self) -> None:
        """Give a slot back; it goes straight to the next waiter."""
        while self._lines:
            caller, line = next(iter(self._lines.items()))
            waiter = next(iter(line))
            self._leave(caller, waiter)
            if waiter.done():  # cancelled, and its task has not run since
                continue
            if line:
                self._lines.move_to_end(caller)
            self._note_turn()
            waiter.set_result(None)
            return
        self.running -= 1

    def close(self) -> None:
        """Refuse all that wait and all that come; those that hold a slot keep it."""
        self.closed = True
        for line in self._lines.values():
            for waiter in line:
                if not waiter.done():
                    waiter.set_exception(_draining())
        self._lines.clear()
        self._by_length.clear()
        self.depth = self._longest = 0

    def _join(self, caller: str) -> asyncio.Future[None]:
        if self.closed:
            raise _draining()
        line = self._lines.get(caller)
        length = len(line) if line else 0
        if self.depth >= self.max_queued:
            if length + 1 >= self._longest:  # taking the place would only reverse the imbalance
                raise self._full()
            self._refuse_newest_of_longest()
        if line is None:
            line = self._lines[caller] = OrderedDict()
        if not self.depth:
            self._last_turn = time.monotonic()
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        line[waiter] = None
        self._count(caller, length, length + 1)
        return waiter

    def _leave(self, caller: str, waiter: asyncio.Future[None]) -> None:
        line = self._lines.get(caller)
        if line is None or waiter not in line:
            return
        del line[waiter]
        self._count(caller, len(line) + 1, len(line))
        if not line:
            del self._lines[caller]

    def _refuse_newest_of_longest(self) -> None:
        caller = next(reversed(self._by_length[self._longest]))
        waiter = next(reversed(self._lines[caller]))
        self._leave(caller, waiter)
        if not waiter.done():
            waiter.set_exception(self._full())

    def _count(self, caller: str, before: int, after: int) -> None:
        """Record that the line of `caller` grew or shrank by one."""
        by_length = self._by_length
        if before:
            as_long = by_length[before]
            del as_long[caller]
            if not as_long:
                del by_length[before]
        if after:
            if after not in by_length:
                by_length[after] = OrderedDict()
            by_length[after][caller] = None
        self.depth += after - before
        if after > self._longest or self._longest not in by_length:
            self._longest = after

    def _note_turn(self) -> None:
        now = time.monotonic()
        gap_seconds = now - self._last_turn
        self._gap_seconds += (gap_seconds - self._gap_seconds) * (_GAP_WEIGHT if self._gap_seconds else 1.0)
        self._last_turn = now

    def _full(self) -> QueueFull:
        """Estimate how long the queue takes at the recent rate, or since the last handover if that is longer."""
        gap_seconds = max(self._gap_seconds, time.monotonic() - self._last_turn)
        seconds = min(max(gap_seconds * self.depth, _RETRY_SECONDS_MIN), _RETRY_SECONDS_MAX)
        return QueueFull(
            f"{self.running} executions run and {self.depth} wait, which is the limit; try again in {seconds:.0f} s",
            retry_after_seconds=seconds,
            queued=self.depth,
        )


def _draining() -> Draining:
    return Draining("the engine is shutting down and accepts no new work; try again later or elsewhere")


class Slots:
    """Runs executions, each in a slot of the queue, and ends them by their ids.

    `run` is called thousands of times a second, so it makes no task, writes no log and keeps one dictionary entry: the
    task of each id. That is all `cancel` needs: it interrupts that task where it waits for the sandbox, and `run` turns
    the interruption into an outcome. An interruption that did not come from `cancel` is raised again, after the sandbox
    has ended the program.
    """

    def __init__(self, max_running: int, max_queued: int) -> None:
        self.queue = SlotQueue(max_running, max_queued)
        self.is_open = False
        self._tasks: dict[str, asyncio.Task[Any]] = {}  # of every execution that waits or runs, by its id
        self._cancelled: set[str] = set()  # ids whose task was interrupted by `cancel`
        self._emptied = asyncio.Event()
        #: Called when an execution gets its slot: raises Overloaded, or returns what to call at its end.
        self.reserve: Callable[[Execution], Awaitable[Callable[[], None]] | None] | None = None

    async def run(
        self, execution: Execution, work: Work, id: str | None = None, watcher: Watcher | None = None
    ) -> Outcome:
        """Wait for a slot, do the work in it, and judge the result. Cancelling this ends the work first.

        Raises:
            Overloaded: the queue is full, or the engine is closing.
            SandboxFault: the program could not be run.
        """
        execution_id = id or new_id()
        task = self._enter(execution_id)
        cancels_before = task.cancelling()
        queue_seconds = 0.0
        queue = self.queue
        try:
            if not queue.take_free():
                joined = time.monotonic()
                await queue.acquire(execution.caller)
                queue_seconds = time.monotonic() - joined
            give_back = None
            try:
                if self.reserve is not None and (coming := self.reserve(execution)) is not None:
                    give_back = await coming
                seen = await work(execution, watcher)
            finally:
                queue.release()
                if give_back is not None:
                    give_back()
        except asyncio.CancelledError:
            if execution_id not in self._cancelled:
                raise
            seen = Evidence(cancelled=True)
        finally:
            by_us = self._leave(execution_id)
        if (by_us and task.uncancel() > cancels_before) or (seen.cancelled and not by_us):
            raise asyncio.CancelledError  # the task was cancelled from outside, too, or only: it expects no outcome
        if len(seen.stdout) + len(seen.stderr) > DECODED_BYTES:
            return await asyncio.to_thread(judge, execution_id, execution, seen, queue_seconds)
        return judge(execution_id, execution, seen, queue_seconds)

    def cancel(self, execution_id: str) -> bool:
        """End a program that waits or runs; its outcome says `cancelled`. False if no execution has that id."""
        task = self._tasks.get(execution_id)
        if task is None:
            return False
        if execution_id not in self._cancelled:
            self._cancelled.add(execution_id)
            task.cancel()
        return True

    def check_open(self) -> None:
        """Raise Draining after `close`, RuntimeError before `open`."""
        if self.queue.closed:
            raise _draining()
        if not self.is_open:
            raise RuntimeError("await engine.open() before running anything")

    async def drain(self, grace_seconds: float) -> None:
        """Let running programs finish within the grace, then cancel the rest; the queue is closed already.

        Cancelling this ends only the grace.
        """
        try:
            async with asyncio.timeout(grace_seconds):
                await self._wait_until_empty()
        except TimeoutError:
            pass
        finally:
            for each in list(self._tasks):
                self.cancel(each)
            await self._wait_until_empty()

    def _enter(self, execution_id: str) -> asyncio.Task[Any]:
        self.check_open()
        if execution_id in self._tasks:
            raise InvalidExecution(
                f"an execution with the id {execution_id!r} runs already; choose another", field="id"
            )
        task = asyncio.current_task()
        assert task is not None
        self._tasks[execution_id] = task
        return task

    def _leave(self, execution_id: str) -> bool:
        """Forget an execution; return whether `cancel` ended it."""
        del self._tasks[execution_id]
        if self.queue.closed and not self._tasks:
            self._emptied.set()
        if execution_id not in self._cancelled:
            return False
        self._cancelled.remove(execution_id)
        return True

    async def _wait_until_empty(self) -> None:
        if self._tasks:
            await self._emptied.wait()
