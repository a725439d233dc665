"""Run an execution: its turn in the queue, the sandbox, the answer.

The path of `run` is walked thousands of times a second, so it makes no task, writes no log and keeps one dictionary
entry: which task runs which id. That is all `cancel` needs: it interrupts that task where it waits for the sandbox,
and `run` turns the interruption into an outcome. An interruption that did not come from `cancel` is the caller's own
and goes on to him, after the sandbox has ended the program.

A stream needs two sides that move independently, the program and its reader, so it pays for one task and a `_Feed`
between them.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import dataclasses
import os
import signal
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any

from belljar.contract.backend import Sandbox, Watcher
from belljar.contract.errors import Draining, InvalidExecution, NotOffered
from belljar.contract.execution import (
    Display,
    Event,
    Evidence,
    Execution,
    Finished,
    Outcome,
    Output,
    ProgramError,
    Started,
    Status,
    ToolAnswered,
    ToolCalled,
    Usage,
    classify,
)
from belljar.contract.tools import ToolHost
from belljar.engine.sessions import Sessions
from belljar.engine.slots import SlotQueue
from belljar.engine.tracebacks import read_error
from belljar.settings import Settings

UNREAD_BYTES_MAX = 256 * 1024  # past this a streaming program waits for its reader
_DECODED_BYTES = 512 * 1024  # at a time: others have their turn in between
_EVENT_BYTES = 256  # what an event costs beside its text: a program that writes single bytes must not fill memory

_SIGNAL_NAMES = {each.value: each.name for each in signal.Signals}

Place = Callable[[Execution, Watcher | None], Awaitable[Evidence]]
Start = Callable[[Watcher], Coroutine[Any, Any, Outcome]]


class Engine:
    """Runs executions in one sandbox, as many at a time as the settings allow. Belongs to one event loop."""

    def __init__(self, sandbox: Sandbox, settings: Settings, tools: ToolHost | None = None) -> None:
        self.sandbox = sandbox
        self.tools = tools
        self.settings = settings
        self._slots = SlotQueue(settings.pool.max_running, settings.pool.max_queued)
        self._tasks: dict[str, asyncio.Task[Any]] = {}  # of every execution that waits or runs, by its id
        self._cancelled: set[str] = set()  # ids whose task was interrupted by us
        self._is_open = False
        self._door = asyncio.Lock()  # one opens or closes at a time
        self._opening: asyncio.Task[None] | None = None
        self._openers = 0  # who wait for that
        self._emptied = asyncio.Event()
        self._background: set[asyncio.Task[Any]] = set()
        self.sessions = Sessions(self)
        #: Asked when an execution gets its turn: raises Overloaded, or returns what to call at its end.
        self.reserve: Callable[[Execution], Awaitable[Callable[[], None]] | None] | None = None

    async def open(self) -> None:
        """Get ready to run; opening twice is harmless.

        Cancelling this ends the attempt, unless others wait for it as well.

        Raises:
            SandboxFault: the sandbox cannot start on this machine.
            Draining: the engine was closed before.
        """
        if self._is_open and not self._slots.closed:
            return
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())
        opening = self._opening
        self._openers += 1
        try:
            await asyncio.shield(opening)
        except asyncio.CancelledError:
            if opening.cancelled() and self._slots.closed:  # not we, but what we waited for
                raise Draining("this engine was closed before it was open") from None
            raise
        finally:
            self._openers -= 1
            if not self._openers:
                self._opening = None
                opening.cancel()
                await asyncio.gather(opening, return_exceptions=True)

    async def _open(self) -> None:
        async with self._door:
            if self._slots.closed:
                raise Draining("this engine was closed; build a new one")
            if not self._is_open:
                await self._open_tools()
                await self.sandbox.open()
                self._is_open = True

    async def close(self, grace_seconds: float = 5.0) -> None:
        """Take nothing new, let what runs finish within the grace, cancel the rest, close the sandbox.

        Cancelling `close` itself ends only the grace: nothing is left behind either way.
        """
        self._slots.close()
        if self._opening is not None:
            self._opening.cancel()  # it may take minutes
        async with self._door:
            try:
                async with asyncio.timeout(grace_seconds):
                    await self._wait_until_empty()
            except TimeoutError:
                pass
            finally:
                for each in list(self._tasks):
                    self.cancel(each)
                await self._wait_until_empty()
                await self._close_all()

    async def _close_all(self) -> None:
        """Each of them, whatever becomes of the others."""
        async with contextlib.AsyncExitStack() as stack:
            if self.tools is not None:
                stack.push_async_callback(self.tools.close)
            if self._is_open:
                self._is_open = False
                stack.push_async_callback(self.sandbox.close)
                await self.sessions.end_all()
                await asyncio.gather(*self._background, return_exceptions=True)

    async def _open_tools(self) -> None:
        if self.tools is not None:
            await self.tools.close()  # an attempt to open before this one may have failed after it
            await self.tools.open()

    def select_tools(self, names: Sequence[str]) -> tuple[str, ...]:
        """The keys of the tools that are named.

        Raises:
            UnknownTool: there is no such tool. NotOffered: there are none.
        """
        if self.tools is None:
            raise NotOffered("tools are not offered here; leave them out", field="tools")
        return self.tools.select(names)

    async def run(
        self,
        execution: Execution,
        *,
        id: str | None = None,
        watcher: Watcher | None = None,
        place: Place | None = None,
    ) -> Outcome:
        """Run one program to its end. Cancelling this ends the program before it returns.

        `place` runs it instead of the sandbox: a session runs its cells so.

        Raises:
            Overloaded: too many wait already, or the engine is closing.
            SandboxFault: the program could not be run.
        """
        if execution.tools:
            execution = dataclasses.replace(execution, tools=self.select_tools(execution.tools))
        execution_id = id or new_id()
        task = self._enter(execution_id)
        cancels_before = task.cancelling()
        queue_seconds = 0.0
        try:
            if not self._slots.take_free():
                joined = time.monotonic()
                await self._slots.acquire(execution.caller)
                queue_seconds = time.monotonic() - joined
            give_back = None
            try:
                if self.reserve is not None and (coming := self.reserve(execution)) is not None:
                    give_back = await coming
                seen = await (place or self.sandbox.run)(execution, watcher)
            finally:
                self._slots.release()
                if give_back is not None:
                    give_back()
        except asyncio.CancelledError:
            if execution_id not in self._cancelled:
                raise
            seen = Evidence(cancelled=True)
        finally:
            by_us = self._leave(execution_id)
        if (by_us and task.uncancel() > cancels_before) or (seen.cancelled and not by_us):
            raise asyncio.CancelledError  # the caller gave up as well, or alone: he expects no outcome
        if len(seen.stdout) + len(seen.stderr) > _DECODED_BYTES:
            return await asyncio.to_thread(judge, execution_id, execution, seen, queue_seconds)
        return judge(execution_id, execution, seen, queue_seconds)

    def stream(
        self, execution: Execution, *, id: str | None = None, start: Start | None = None
    ) -> AsyncGenerator[Event, None]:
        """Run one program and yield what it does while it does it; closing this early ends the program first.

        A reader that is slow slows the program down, and the program's clock does not wait for him. `start` begins
        the run, where `run` would not: a session's cell waits for its turn first.

        Raises:
            Overloaded, SandboxFault: as `run`, from the first step.
        """
        execution_id = id or new_id()
        return _follow(execution_id, start or (lambda feed: self.run(execution, id=execution_id, watcher=feed)))

    def cancel(self, execution_id: str) -> bool:
        """End a program that waits or runs; its outcome says `cancelled`. False if there is none of that id."""
        task = self._tasks.get(execution_id)
        if task is None:
            return False
        if execution_id not in self._cancelled:
            self._cancelled.add(execution_id)
            task.cancel()
        return True

    @property
    def is_draining(self) -> bool:
        """Whether nothing new is taken."""
        return self._slots.closed

    def in_background(self, work: Coroutine[Any, Any, Any]) -> None:
        """Do something that nobody waits for, but the end of this engine."""
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def check_open(self) -> None:
        """Raise unless something new may begin."""
        if self._slots.closed:
            raise Draining("the engine is shutting down and takes nothing new; try again later or elsewhere")
        if not self._is_open:
            raise RuntimeError("await engine.open() before running anything")

    def facts(self) -> Mapping[str, Any]:
        """Numbers for monitoring, the sandbox's own among them."""
        return {
            "backend": self.sandbox.name,
            "open": self._is_open,
            "draining": self._slots.closed,
            "running": self._slots.running,
            "queued": self._slots.depth,
            "max_running": self._slots.max_running,
            "max_queued": self._slots.max_queued,
            "sandbox": self.sandbox.facts(),
            "sessions": self.sessions.facts(),
            "tools": {} if self.tools is None else self.tools.facts(),
        }

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
        """Forget an execution; whether `cancel` was asked to end it."""
        del self._tasks[execution_id]
        if self._slots.closed and not self._tasks:
            self._emptied.set()
        if execution_id not in self._cancelled:
            return False
        self._cancelled.remove(execution_id)
        return True

    async def _wait_until_empty(self) -> None:
        if self._tasks:
            await self._emptied.wait()


async def _follow(execution_id: str, start: Start) -> AsyncGenerator[Event, None]:
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
            task.exception()  # read, or asyncio complains that nobody did: whoever left early does not want it


def new_id() -> str:
    """An id nobody can guess: whoever knows one may cancel it."""
    return "x_" + os.urandom(16).hex()


def judge(execution_id: str, execution: Execution, seen: Evidence, queue_seconds: float) -> Outcome:
    """Turn what was observed into what is answered."""
    status = classify(seen)
    stderr = _decode(seen.stderr, seen.stderr_cut)
    may_show_error = status in (Status.FAILED, Status.DENIED) and seen.exit_code == 1
    return Outcome(
        id=execution_id,
        language=execution.language,
        status=status,
        exit_code=None if seen.signal is not None else seen.exit_code,
        signal=None if seen.signal is None else _name_signal(seen.signal),
        stdout=_decode(seen.stdout, seen.stdout_cut),
        stderr=stderr + seen.note,
        stdout_cut=seen.stdout_cut,
        stderr_cut=seen.stderr_cut,
        error=seen.error or (_read_error(stderr, seen) if may_show_error and execution.language == "python" else None),
        displays=seen.displays,
        artifacts=seen.artifacts,
        compilation=seen.compilation,
        tool_calls=seen.tool_calls,
        coverage=seen.coverage,
        usage=Usage(
            wall_seconds=_to_microseconds(seen.wall_seconds),
            cpu_seconds=_to_microseconds(seen.cpu_seconds),
            memory_peak_bytes=seen.memory_peak_bytes,
            queue_seconds=_to_microseconds(queue_seconds) if queue_seconds else 0.0,
            network=seen.network,
        ),
    )


def _read_error(stderr: str, seen: Evidence) -> ProgramError | None:
    """The exception that its standard error ends with, be it in the part that was cut off."""
    if not seen.stderr_cut:
        return read_error(stderr)
    return read_error(stderr + _decode(seen.stderr_tail, False)) if seen.stderr_tail else None


def _to_microseconds(seconds: float) -> float:
    """Rounded. `round` thinks in decimals, which takes longer than reading the clock did."""
    return int(seconds * 1e6 + 0.5) / 1e6


def _decode(written: bytes, was_cut: bool) -> str:
    """Bytes that are not UTF-8 are replaced; half a character at our own cut is not the program's fault, and goes."""
    if len(written) > _DECODED_BYTES:
        decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        slices = (written[at : at + _DECODED_BYTES] for at in range(0, len(written), _DECODED_BYTES))
        return "".join([*map(decode, slices), decode(b"", not was_cut)])
    return codecs.utf_8_decode(written, "replace", not was_cut)[0] if written else ""


def _name_signal(number: int) -> str:
    if number < signal.SIGRTMIN:  # between those with names and the first of these the C library keeps some for itself
        return _SIGNAL_NAMES.get(number) or f"SIG{number}"
    return _SIGNAL_NAMES.get(number) or f"SIGRTMIN+{number - signal.SIGRTMIN}"


class _Feed:
    """What a program did and its reader has not seen yet. The sandbox writes as a Watcher; one reader calls `next`."""

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
        """The program is gone, well or not; `task` knows which."""
        self._ended = True
        self._news.set()

    async def next(self) -> Event | None:
        """The oldest event, or None when the program is gone and all was read."""
        while not self._unread:
            if self._ended:
                return None
            self._news.clear()
            await self._news.wait()
        event, cost_bytes = self._unread.popleft()
        self._unread_bytes -= cost_bytes
        if self._unread_bytes <= UNREAD_BYTES_MAX // 2:  # not at once: a pause should be worth it
            self._room.set()
        return event

    def rest(self, outcome: Outcome) -> list[Output]:
        """Half characters the program ended with; at our own cut they go, as in the outcome."""
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
