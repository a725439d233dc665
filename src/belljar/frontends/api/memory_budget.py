"""Memory for what requests send and what they are answered, counted for all callers together.

Bytes are counted as they arrive, not as they are announced, and answers until the client has taken them. A caller may
hold as much as is still free: one alone gets half, n callers 1/(n+1) each, and there is always something left for the
next one. What was begun is brought to its end. A shortage refuses what is new, with one exception: a program that asks
for artifacts or for much output waits for its room, up to a minute, and one of them always gets it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from belljar.contract.errors import Overloaded
from belljar.contract.execution import Execution
from belljar.settings import Settings

SMALL_BYTES = 64 * 1024  # requests up to here are served as long as anything at all is free
_RETRY_SECONDS = 2.0
_TURN_SECONDS = 60.0  # for a program that has its turn
_WAIT_SECONDS = 10.0  # for a file of a session, which is read in a moment


class Holder:
    """Whose memory it is."""

    held_bytes = 0  # of requests and answers
    answer_bytes = 0  # of these, of answers
    aside_bytes = 0  # of these, set aside for answers of programs that still run


class BodyRoom:
    """How much memory is left."""

    def __init__(self, each_bytes: int, all_bytes: int) -> None:
        self.each_bytes = each_bytes
        self.all_bytes = all_bytes
        self.free_bytes = all_bytes
        self._waiting: list[asyncio.Future[None]] = []

    def take(self, holder: Holder, size: int, of_request: int) -> None:
        """Count `size` more bytes of a request that has sent `of_request` before.

        Raises:
            Overloaded: there is too little left for this caller.
        """
        left = self.free_bytes - size
        has_others = holder.held_bytes > of_request  # the only request of a caller may have all that is free
        if left < 0 or (has_others and of_request + size > SMALL_BYTES and holder.held_bytes + size > left):
            raise self.shortage(holder)
        self.free_bytes = left
        holder.held_bytes += size

    def give_back(self, holder: Holder, size: int) -> None:
        """Undo a `take`."""
        self.free_bytes += size
        holder.held_bytes -= size
        if self._waiting:
            self._wake()

    def keep(self, holder: Holder, size: int) -> None:
        """Count an answer, or room for one. It is there or will be, whether there is room or not."""
        self.free_bytes -= size
        holder.held_bytes += size
        holder.answer_bytes += size

    def let_go(self, holder: Holder, size: int) -> None:
        """Undo a `keep`."""
        self.free_bytes += size
        holder.held_bytes -= size
        holder.answer_bytes -= size
        if self._waiting:
            self._wake()

    def may_answer(self, holder: Holder, size: int) -> bool:
        """Whether this caller may be given an answer of that size beside what it holds already."""
        held = holder.answer_bytes
        return (held <= SMALL_BYTES and size <= self.free_bytes) or held + size <= self.free_bytes - size

    def may_run(self, holder: Holder) -> bool:
        """Whether the answers that this caller has not read yet leave room for another."""
        unread = holder.answer_bytes - holder.aside_bytes
        return unread <= max(SMALL_BYTES, self.free_bytes) and self.free_bytes >= 0

    async def wait_to_answer(
        self,
        holder: Holder,
        size: int,
        seconds: float = _WAIT_SECONDS,
        is_alone: Callable[[], bool] = lambda: False,
    ) -> None:
        """Return once `may_answer`, or `is_alone`.

        Raises:
            Overloaded: it has not come to that for some seconds.
        """
        try:
            async with asyncio.timeout(seconds):
                while not (self.may_answer(holder, size) or is_alone()):
                    waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                    self._waiting.append(waiting)
                    await waiting
        except TimeoutError:
            raise self.shortage(holder) from None

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if not each.done():
                each.set_result(None)

    def shortage(self, holder: Holder) -> Overloaded:
        """The error for a caller that holds too much, or comes when others do."""
        return Overloaded(
            f"requests and answers under way hold {self.all_bytes - self.free_bytes:,} of the {self.all_bytes:,} bytes "
            f"of memory for them (server.bodies_bytes), {holder.held_bytes:,} of these are yours; read your answers, "
            "or try again soon",
            retry_after_seconds=_RETRY_SECONDS,
            max=self.all_bytes,
        )


class AnswerRoom:
    """Decides, when a program gets its turn, whether there is room for what it may answer."""

    def __init__(self, room: BodyRoom, settings: Settings, find: Callable[[str], Holder | None]) -> None:
        """`find` knows a caller by name."""
        self._room = room
        self._files_bytes = settings.request.files_bytes
        self._ordinary_bytes = 2 * settings.default_limits.output_bytes
        self._find = find
        self._aside = 0  # programs with room set aside; one always gets it, so that all come to their end

    def reserve(self, execution: Execution) -> Coroutine[Any, Any, Callable[[], None]] | None:
        """Set room aside for a program that asks for files or for much output; return how to give it back.

        Others need nothing ahead: their answer is counted when it is there.

        Raises:
            Overloaded: its caller holds too much already.
        """
        holder = self._find(execution.caller)
        if holder is None:
            return None
        room = self._room
        if not room.may_run(holder):
            raise room.shortage(holder)
        size = 2 * execution.limits.output_bytes + (self._files_bytes if execution.artifacts else 0)
        if size <= self._ordinary_bytes or size > room.all_bytes:  # the latter could never be set aside
            return None
        return self._set_aside(holder, min(size, room.all_bytes // 2))

    async def _set_aside(self, holder: Holder, size: int) -> Callable[[], None]:
        room = self._room
        if self._aside:
            await room.wait_to_answer(holder, size, _TURN_SECONDS, lambda: not self._aside)
        self._aside += 1
        room.keep(holder, size)
        holder.aside_bytes += size

        def give_back() -> None:
            self._aside -= 1
            holder.aside_bytes -= size
            room.let_go(holder, size)

        return give_back
