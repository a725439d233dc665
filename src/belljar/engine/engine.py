"""The engine: one sandbox, its tools and its sessions, and how many programs run in it at a time."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from belljar.aio import cancel_all
from belljar.contract.backend import Observer, Sandbox, Watcher
from belljar.contract.errors import Draining
from belljar.contract.execution import Event, Execution, Outcome
from belljar.contract.tools import ToolHost
from belljar.engine.outcomes import new_id
from belljar.engine.sessions import Sessions, select_tools
from belljar.engine.slots import Slots
from belljar.engine.streams import follow
from belljar.settings import Settings


class Engine:
    """Runs executions in one sandbox, as many at a time as the settings allow. Belongs to one event loop."""

    def __init__(self, sandbox: Sandbox, settings: Settings, tools: ToolHost | None = None) -> None:
        self.sandbox = sandbox
        self.tools = tools
        self.settings = settings
        self.slots = Slots(settings.pool.max_running, settings.pool.max_queued)
        self.sessions = Sessions(sandbox, self.slots, settings.sessions, tools)
        self._observer: Observer | None = None
        self._lock = asyncio.Lock()  # one opens or closes at a time
        self._opening: asyncio.Task[None] | None = None
        self._openers = 0  # how many wait for that

    async def open(self) -> None:
        """Get ready to run; opening twice is harmless.

        Cancelling this ends the attempt, unless others wait for it as well.

        Raises:
            SandboxFault: the sandbox cannot start on this machine.
            Draining: the engine was closed before.
        """
        if self.slots.is_open and not self.is_draining:
            return
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())
        opening = self._opening
        self._openers += 1
        try:
            await asyncio.shield(opening)
        except asyncio.CancelledError:
            if opening.cancelled() and self.is_draining:  # `close` cancelled the opening, not this task
                raise Draining("this engine was closed before it was open") from None
            raise
        finally:
            self._openers -= 1
            if not self._openers:
                self._opening = None
                await cancel_all([opening])

    async def _open(self) -> None:
        async with self._lock:
            if self.is_draining:
                raise Draining("this engine was closed; build a new one")
            if not self.slots.is_open:
                if self.tools is not None:
                    await self.tools.close()  # an attempt to open before this one may have failed after it
                    await self.tools.open()
                await self.sandbox.open()
                self.slots.is_open = True

    async def close(self, grace_seconds: float = 5.0) -> None:
        """Accept no new work, let running programs finish within the grace, cancel the rest, close the sandbox.

        Cancelling `close` itself ends only the grace: nothing is left behind either way.
        """
        self.slots.queue.close()
        if self._opening is not None:
            self._opening.cancel()  # it may take minutes
        async with self._lock:
            try:
                await self.slots.drain(grace_seconds)
            finally:
                await self._close_all()

    async def _close_all(self) -> None:
        """Close each part, even if closing another fails."""
        async with contextlib.AsyncExitStack() as stack:
            if self.tools is not None:
                stack.push_async_callback(self.tools.close)
            if self.slots.is_open:
                self.slots.is_open = False
                stack.push_async_callback(self.sandbox.close)
                await self.sessions.end_all()

    def observe(self, observer: Observer) -> None:
        """Report outcomes of executions and cells, and ended sessions, to `observer`."""
        self._observer = observer
        self.sessions.on_cell = observer.ran_cell
        self.sessions.on_end = observer.ended

    async def run(
        self, execution: Execution, *, id: str | None = None, watcher: Watcher | None = None, is_observed: bool = True
    ) -> Outcome:
        """Run one program to its end. Cancelling this ends the program before it returns.

        Raises:
            Overloaded: the queue is full, or the engine is closing.
            SandboxFault: the program could not be run.
        """
        if execution.tools:
            execution = dataclasses.replace(execution, tools=select_tools(self.tools, execution.tools))
        outcome = await self.slots.run(execution, self.sandbox.run, id, watcher)
        if is_observed and self._observer is not None:
            self._observer.executed(execution, outcome)
        return outcome

    def stream(self, execution: Execution, *, id: str | None = None) -> AsyncGenerator[Event, None]:
        """Run one program and yield what it does while it does it; closing this early ends the program first.

        A slow reader slows the program down, while the program's wall clock keeps running.

        Raises:
            Overloaded, SandboxFault: as `run`, from the first step.
        """
        execution_id = id or new_id()
        return follow(execution_id, lambda feed: self.run(execution, id=execution_id, watcher=feed))

    def cancel(self, execution_id: str) -> bool:
        """End a program that waits or runs; its outcome says `cancelled`. False if no execution has that id."""
        return self.slots.cancel(execution_id)

    @property
    def is_draining(self) -> bool:
        """Whether new work is refused."""
        return self.slots.queue.closed

    def facts(self) -> Mapping[str, Any]:
        """Numbers for monitoring, the sandbox's own among them."""
        queue = self.slots.queue
        return {
            "backend": self.sandbox.name,
            "open": self.slots.is_open,
            "draining": queue.closed,
            "running": queue.running,
            "queued": queue.depth,
            "max_running": queue.max_running,
            "max_queued": queue.max_queued,
            "sandbox": self.sandbox.facts(),
            "sessions": self.sessions.facts(),
            "tools": {} if self.tools is None else self.tools.facts(),
        }
