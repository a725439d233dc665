"""One tool call: who asks, and how what it asks for is run.

Why the engine works in a task of its own: the SDK cancels a call by interrupting its task again at every step until
it ends, which would tear the sandbox out of its own clean-up. The task here is interrupted once and then waited for,
so when a cancelled call is over its program is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from belljar.aio import cancel_and_wait
from belljar.contract.execution import Display, Execution, Outcome, ToolAnswered, ToolCalled
from belljar.contract.sessions import SessionOrder, SessionState
from belljar.engine.engine import Engine
from belljar.engine.sessions import Sessions
from belljar.environments import Environments
from belljar.frontends.access.callers import Caller
from belljar.frontends.mcp.config import ServerConfig
from belljar.settings import Settings

_PROGRESS_SECONDS = 1.0
_SHOWN_CHARACTERS = 200
_T = TypeVar("_T")

#: Tells the client how far a call is: seconds so far, seconds at most, and a word about it.
Report = Callable[[float, float | None, str | None], Awaitable[None]]


class Host(Protocol):
    """Whoever has the engine: a server of its own, or the HTTP server."""

    settings: Settings
    environments: Environments

    @property
    def ready(self) -> Engine | None:
        """The engine, if it is open."""

    async def engine(self) -> Engine:
        """The open engine; waits while it starts. Raises SandboxFault if it cannot."""

    def news(self) -> str | None:
        """What a starting engine is busy with."""

    def executed(self, execution: Execution, outcome: Outcome) -> None:
        """Count and log an execution that has its outcome."""

    def opened(self, caller: Caller, session: SessionState) -> None:
        """Log a session that is there now."""

    def ran_cell(self, caller: Caller, session_id: str, cell: Execution, outcome: Outcome) -> None:
        """Count and log a cell that has its outcome."""

    def broke(self, error: Exception) -> None:
        """Note a fault of ours."""


class Tail:
    """A Watcher that remembers the last line a program wrote: what a waiting user wants to see."""

    is_behind = False

    def __init__(self) -> None:
        self.line: str | None = None

    def started(self) -> None:
        """Nothing to show yet."""

    def wrote(self, stream: str, chunk: bytes) -> None:
        """Keep the end of it."""
        lines = chunk[-4 * _SHOWN_CHARACTERS :].decode("utf-8", "replace").split("\n")
        last = next((line for line in reversed(lines) if line.strip()), None)
        if last is not None:
            self.line = last.strip()[:_SHOWN_CHARACTERS]

    def displayed(self, display: Display) -> None:
        """Pictures are in the answer."""

    def called(self, call: ToolCalled) -> None:
        """Show which tool is asked."""
        self.line = f"calls {call.tool}"

    def answered(self, answer: ToolAnswered) -> None:
        """The next line will tell."""

    async def caught_up(self) -> None:
        """Never behind."""


@dataclass(slots=True, kw_only=True)
class Call:
    """What a tool works with."""

    host: Host
    offer: ServerConfig
    caller: Caller
    report: Report | None = None  # None: the client did not ask for progress

    @property
    def has_network(self) -> bool:
        """Whether programs get one: the server gives it, and this caller may have it."""
        return self.offer.network and self.caller.key.network

    async def run(self, execution: Execution) -> Outcome:
        """Run a program that stands alone."""
        tail = Tail() if self.report else None
        with self.caller.running_up_to(1):
            engine = await self.engine()
            outcome = await self.wait(engine.run(execution, watcher=tail), execution.limits.wall_seconds, tail)
        self.host.executed(execution, outcome)
        return outcome

    async def run_cell(self, session_id: str, cell: Execution) -> Outcome:
        """Run a cell of a session."""
        tail = Tail() if self.report else None
        with self.caller.running_up_to(1):
            sessions = await self.sessions()
            work = sessions.run(self.caller.owner, session_id, cell, watcher=tail)
            outcome = await self.wait(work, cell.limits.wall_seconds, tail)
        self.host.ran_cell(self.caller, session_id, cell, outcome)
        return outcome

    async def open_session(self, order: SessionOrder) -> SessionState:
        """A new session, if this caller may have one more."""
        sessions = await self.sessions()
        with self.caller.opening(1, lambda: sessions.list(self.caller.owner)):
            state = await self.wait(sessions.open(order))
        self.host.opened(self.caller, state)
        return state

    async def branch_session(self, session_id: str, count: int) -> Sequence[SessionState]:
        """Copies of a session, if this caller may have so many more."""
        sessions = await self.sessions()
        with self.caller.opening(count, lambda: sessions.list(self.caller.owner)):
            copies = await self.wait(sessions.branch(self.caller.owner, session_id, count))
        for state in copies:
            self.host.opened(self.caller, state)
        return copies

    async def engine(self) -> Engine:
        """The open engine."""
        ready = self.host.ready  # at nearly every call; waiting would take a task
        return await self.wait(self.host.engine()) if ready is None else ready

    async def sessions(self) -> Sessions:
        """The sessions of the open engine."""
        return (await self.engine()).sessions

    async def wait(
        self, work: Coroutine[Any, Any, _T], most_seconds: float | None = None, tail: Tail | None = None
    ) -> _T:
        """Let `work` finish, telling the client how far it is; cancelling this ends it first."""
        task = asyncio.ensure_future(work)
        try:
            if self.report is None:
                return await asyncio.shield(task)
            async with self._reporting(self.report, most_seconds, tail):
                return await asyncio.shield(task)
        finally:
            if not task.done():
                await cancel_and_wait(task)

    @contextlib.asynccontextmanager
    async def _reporting(self, report: Report, most_seconds: float | None, tail: Tail | None) -> AsyncIterator[None]:
        ticker = asyncio.ensure_future(self._tick(report, most_seconds, tail))
        ticker.add_done_callback(_read)  # a client that cannot be told is no reason to stop
        try:
            yield
        finally:
            ticker.cancel()

    async def _tick(self, report: Report, most_seconds: float | None, tail: Tail | None) -> None:
        began = time.monotonic()
        while True:
            await asyncio.sleep(_PROGRESS_SECONDS)
            seconds = round(time.monotonic() - began, 1)
            message = tail.line if tail else self.host.news()
            await report(seconds, most_seconds, message or f"running for {seconds:.0f} s")


def _read(task: asyncio.Future[Any]) -> None:
    """Look at how it ended, or asyncio complains that nobody did."""
    if not task.cancelled():
        task.exception()
