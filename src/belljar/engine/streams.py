"""A run as a stream of events.

A stream needs two sides that move independently, the program and its reader, so it pays for one task and a `_Feed`
between them.
"""

from __future__ import annotations

import asyncio
import codecs
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any

from belljar.contract.backend import Watcher
from belljar.contract.execution import Display, Event, Finished, Outcome, Output, Started, ToolAnswered, ToolCalled

UNREAD_BYTES_MAX = 256 * 1024  # past this a streaming program waits for its reader
_EVENT_BYTES = 256  # of an event beside its text: a program that writes single bytes must not fill memory

Start = Callable[[Watcher], Coroutine[Any, Any, Outcome]]


async def follow(execution_id: str, start: Start) -> AsyncGenerator[Event, None]:
    """Yield what happens in the run that `start` begins, and its outcome last; closing this early ends it first."""
    feed = _Feed(execution_id)
    task = asyncio.create_task(start(feed))
    task.add_done_callback(feed.end)
    try:
        while (event := await feed.next()) is not None:
            yield event
        outcome = task.result()
        for output in feed.rest(outcome):
            yield output
        yield Finished(outcome=outcome)
    finally:
        if not task.done():  # else without an await: a loop that shuts down closes all generators side by side
            task.cancel()
            await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # read it, or asyncio warns: a reader that left early does not want it


class _Feed:
    """Events that the reader has not read yet. The sandbox writes them as a Watcher; one reader calls `next`."""

    def __init__(self, execution_id: str) -> None:
        self._id = execution_id
        self._unread: deque[tuple[Event, int]] = deque()
        self._unread_bytes = 0
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._ended = False
        new_decoder = codecs.getincrementaldecoder("utf-8")
        self._decoders = {"stdout": new_decoder("replace"), "stderr": new_decoder("replace")}

    def started(self) -> None:
        self._put(Started(id=self._id), 0)

    def wrote(self, stream: str, chunk: bytes) -> None:
        text = self._decoders[stream].decode(chunk)
        if text:
            self._put(Output(stream=stream, text=text), len(chunk))

    def displayed(self, display: Display) -> None:
        self._put(display, len(display.content))

    def called(self, call: ToolCalled) -> None:
        self._put(call, _EVENT_BYTES + call.size_bytes)

    def answered(self, answer: ToolAnswered) -> None:
        self._put(answer, _EVENT_BYTES + answer.size_bytes)

    @property
    def is_behind(self) -> bool:
        return not self._room.is_set()

    async def caught_up(self) -> None:
        await self._room.wait()

    def end(self, task: asyncio.Task[Outcome]) -> None:
        """The run is over; `task` has its outcome or its error."""
        self._ended = True
        self._news.set()

    async def next(self) -> Event | None:
        """The oldest event, or None when the run is over and all was read."""
        while not self._unread:
            if self._ended:
                return None
            self._news.clear()
            await self._news.wait()
        event, cost_bytes = self._unread.popleft()
        self._unread_bytes -= cost_bytes
        if self._unread_bytes <= UNREAD_BYTES_MAX // 2:  # not at once, so that the program pauses rarely
            self._room.set()
        return event

    def rest(self, outcome: Outcome) -> list[Output]:
        """Half characters at the end of the output; at the output limit they are dropped, as in the outcome."""
        cut = {"stdout": outcome.stdout_cut, "stderr": outcome.stderr_cut}
        texts = {stream: decoder.decode(b"", not cut[stream]) for stream, decoder in self._decoders.items()}
        return [Output(stream=stream, text=text) for stream, text in texts.items() if text]

    def _put(self, event: Event, content_bytes: int) -> None:
        cost_bytes = content_bytes + _EVENT_BYTES
        self._unread.append((event, cost_bytes))
        self._unread_bytes += cost_bytes
        if self._unread_bytes > UNREAD_BYTES_MAX:
            self._room.clear()
        self._news.set()
