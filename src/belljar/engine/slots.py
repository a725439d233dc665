"""Whose turn it is: a bounded, fair line for a fixed number of slots.

Within one caller, first come, first served. Between callers, turns go round: a caller with a thousand waiting
delays one with a single program by one turn, not by a thousand.

When the line is full, the longest line pays: its newest waiter is refused to make room for a caller with less
waiting. Otherwise one caller could fill the whole line, and everybody else would be refused at the door however fair
the turns are.

A slot that becomes free is handed to the next waiter directly, never put back for all to grab; so whoever finds a
free slot knows that nobody waits, and takes it without an `await`. There are no tasks here and no locks: one event
loop owns a queue. Every operation takes constant time, cancelling included.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict

from belljar.contract.errors import Draining, QueueFull

_RETRY_SECONDS_MIN = 1.0
_RETRY_SECONDS_MAX = 60.0
_GAP_WEIGHT = 1 / 32  # how much the newest gap between two turns changes the estimate

_Line = OrderedDict[asyncio.Future[None], None]  # ordered, and any member can leave in constant time


class SlotQueue:
    """`max_running` slots and a line of at most `max_queued` waiters.

    Invariants:
        A slot is free only if nobody waits.
        `_lines` holds a caller exactly while somebody waits for him, in the order of the next turns.
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
        self._gap_seconds = 0.0  # between two turns while somebody waits
        self._last_turn = 0.0

    def take_free(self) -> bool:
        """Take a slot if one is free; the caller of a true answer owes one `release`."""
        if self.running >= self.max_running or self.closed:
            return False
        self.running += 1
        return True

    async def acquire(self, caller: str = "") -> None:
        """Wait for a slot; whoever returns from here owes one `release`.

        Raises:
            QueueFull: too many wait already, or a caller with less waiting needed the place.
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
        """Give a slot back; it goes straight to whoever is next."""
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
        """Refuse everybody who waits or comes; those who hold a slot keep it."""
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
            if length + 1 >= self._longest:  # taking a place would only turn the injustice round
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
        """How long the whole line takes at the recent rate; a rate that has just collapsed counts as it stands."""
        gap_seconds = max(self._gap_seconds, time.monotonic() - self._last_turn)
        seconds = min(max(gap_seconds * self.depth, _RETRY_SECONDS_MIN), _RETRY_SECONDS_MAX)
        return QueueFull(
            f"{self.running} executions run and {self.depth} wait, which is all there is room for; "
            f"try again in {seconds:.0f} s",
            retry_after_seconds=seconds,
            queued=self.depth,
        )


def _draining() -> Draining:
    return Draining("the engine is shutting down and takes nothing new; try again later or elsewhere")
