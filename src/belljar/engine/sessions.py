"""Sessions by id: which caller may use one, one cell at a time, how long each is kept, how many there may be.

An id belongs to its caller: two callers may choose the same one, and neither learns of the other's. A session that has
ended is remembered, with the reason, until it would have expired; a request for it then gets that reason.

A cell waits for its session first and for a running slot second, so that cells waiting for each other hold no slot.

Idle time is measured by the monotonic clock; the time of day is only shown.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from belljar.aio import wait_until_done
from belljar.contract.backend import Sandbox, Watcher
from belljar.contract.errors import (
    InvalidExecution,
    NotFound,
    NotOffered,
    SessionBusy,
    SessionEnded,
    SessionExists,
    SessionNotFound,
    TooManySessions,
)
from belljar.contract.execution import Event, Evidence, Execution, Outcome
from belljar.contract.sessions import LiveSession, SessionOrder, SessionState, WorkFile
from belljar.contract.tools import ToolHost
from belljar.engine.outcomes import new_id
from belljar.engine.slots import Slots
from belljar.engine.streams import follow
from belljar.settings import SessionSettings

_log = logging.getLogger("belljar.sessions")
_REMEMBERED_MAX = 10_000
_RETRY_SECONDS_MAX = 60.0
_SHOWN_CHARACTERS = 140
_REASONS = {
    "memory": "out of memory",
    "exit": "its process has exited",
    "crash": "its process has crashed",
    "timeout": "a cell could not be interrupted, or used too much processor time after its end",
    "closed": "it was closed",
    "lost": "the server lost its process",
    "expired": "it was unused for too long",
    "replaced": "the server was full and it was unused for longest",
}

_Key = tuple[str, str]  # caller and id


class _Session:
    """A live session, and what the engine knows of it beside its process."""

    def __init__(self, order: SessionOrder, live: LiveSession, parent: str | None = None) -> None:
        self.order = order
        self.key: _Key = (order.caller, order.id)
        self.live = live
        self.parent = parent
        self.lock = asyncio.Lock()  # held while a cell runs, and while it is branched
        self.cells = 0
        self.created_at = time.time()
        self.timer: asyncio.TimerHandle | None = None
        self.touch()

    def touch(self) -> None:
        """Start its idle time again."""
        self.last_used_at = time.time()
        self.idle_since = time.monotonic()

    @property
    def is_busy(self) -> bool:
        return self.lock.locked()

    @property
    def idle_until(self) -> float:
        """When it expires unless it is used before; by the monotonic clock."""
        return self.idle_since + self.order.idle_seconds

    def state(self) -> SessionState:
        order = self.order
        return SessionState(
            id=order.id,
            language=order.language,
            environment=order.environment,
            is_busy=self.is_busy,
            cells=self.cells,
            memory_bytes=self.live.memory_bytes(),
            created_at=self.created_at,
            last_used_at=self.last_used_at,
            expires_at=self.last_used_at + order.idle_seconds,
            parent=self.parent,
            limits=order.limits,
        )


class _OpenSessions:
    """The sessions that are open, until they are closed, end by themselves or expire; and why the others ended."""

    def __init__(self, on_end: Callable[[_Session, str], None]) -> None:
        self._on_end = on_end
        self._by_key: dict[_Key, _Session] = {}
        self._reasons: dict[_Key, tuple[str, float]] = {}  # why a session ended, and until when that is remembered
        self._closing: set[asyncio.Task[None]] = set()  # sessions that have expired

    def __iter__(self) -> Iterator[_Session]:
        return iter(self._by_key.values())

    def __len__(self) -> int:
        return len(self._by_key)

    def get(self, key: _Key) -> _Session | None:
        """The session of that key, which may have ended a moment ago."""
        return self._by_key.get(key)

    def find(self, caller: str, id: str) -> _Session:
        """The open session of that id. Raises SessionNotFound, SessionEnded."""
        session = self._by_key.get((caller, id))
        if session is not None and session.live.ended is None:
            return session
        reason = session.live.ended if session is not None else self._reasons.get((caller, id), (None, 0.0))[0]
        if reason is not None:
            raise SessionEnded(f"session {_show(id)} has ended: {_REASONS.get(reason, reason)}", reason=reason)
        raise SessionNotFound(f"session {_show(id)} does not exist; open one first", id=str(id)[:_SHOWN_CHARACTERS])

    def oldest_idle(self, caller: str | None = None) -> _Session | None:
        """The idle session, of this caller or of all, that was unused for longest."""
        idle = [each for each in self if not each.is_busy and caller in (None, each.order.caller)]
        return min(idle, key=lambda each: each.idle_since, default=None)

    def add(self, session: _Session) -> None:
        self._by_key[session.key] = session
        self._reasons.pop(session.key, None)
        session.live.on_end(lambda: self._forget(session, session.live.ended or "lost"))
        self._expire_later(session)

    async def close(self, session: _Session, reason: str) -> None:
        """End it, with whatever runs in it."""
        try:
            self._forget(session, reason)
        finally:
            await session.live.close()

    async def close_all(self) -> None:
        """End every session; an error in one is logged, and does not keep the others open."""
        closing = (self.close(each, "closed") for each in list(self))
        for error in await asyncio.gather(*closing, return_exceptions=True):
            if error is not None:
                _log.error("a session could not be ended", exc_info=error)
        await asyncio.gather(*self._closing, return_exceptions=True)

    def _forget(self, session: _Session, reason: str) -> None:
        if self._by_key.get(session.key) is not session:
            return
        del self._by_key[session.key]
        if session.timer is not None:
            session.timer.cancel()
        self._on_end(session, reason)
        now = time.monotonic()
        until = now + session.order.idle_seconds if reason == "expired" else max(session.idle_until, now + 1.0)
        self._reasons[session.key] = reason, until
        for key, (_, until) in list(self._reasons.items())[:8]:  # one is added at a time: a few keep up with that
            if until < now or len(self._reasons) > _REMEMBERED_MAX:
                del self._reasons[key]

    def _expire_later(self, session: _Session) -> None:
        seconds = max(0.05, session.idle_until - time.monotonic())
        session.timer = asyncio.get_running_loop().call_later(seconds, self._expire, session)

    def _expire(self, session: _Session) -> None:
        if session.is_busy or session.idle_until > time.monotonic():
            self._expire_later(session)
        elif self._by_key.get(session.key) is session:
            closing = asyncio.create_task(self.close(session, "expired"))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)


class Sessions:
    """Every session of one engine."""

    def __init__(
        self, sandbox: Sandbox, slots: Slots, settings: SessionSettings, tools: ToolHost | None = None
    ) -> None:
        self._sandbox = sandbox
        self._slots = slots
        self._settings = settings
        self._tools = tools
        self._open = _OpenSessions(self._count_end)
        self._reserved: Counter[str] = Counter()  # by caller: being opened, and counted already
        self._opening: dict[_Key, asyncio.Event] = {}  # set once it is open, or could not be opened
        self._ended: Counter[str] = Counter()  # by reason
        self._opened = self._branched = 0
        self.on_cell: Callable[[str, Execution, Outcome], None] | None = None  # called with id, cell and outcome
        self.on_end: Callable[[str, str, int], None] | None = None  # called with id, reason and cells of each that ends

    # ---- opening

    async def find_or_open(
        self, order: SessionOrder, quota: Callable[[], AbstractContextManager[object]], first: Execution | None = None
    ) -> tuple[SessionState, bool]:
        """The caller's session of that id, opened if it does not exist or has ended, and whether it is new.

        One that another request is opening is waited for. `quota` is entered while a new one is opened, and may
        refuse it; `first` is as in `open`.

        Raises:
            TooManySessions, NotOffered, UnknownEnvironment, SandboxFault.
        """
        key = order.caller, order.id
        while (opening := self._opening.get(key)) is not None:
            await opening.wait()
        with contextlib.suppress(NotFound):
            return self.get(*key), False
        with quota():  # no await between the look into `_opening` and the entry there: no other request comes between
            return await self.open(order, first), True

    async def open(self, order: SessionOrder, first: Execution | None = None) -> SessionState:
        """Open a session; `first` is a cell that it has run before any request can use it.

        Raises:
            TooManySessions, SessionExists, NotOffered, UnknownEnvironment, SandboxFault.
        """
        self._slots.check_open()
        if not order.id:
            order = dataclasses.replace(order, id=_new_session_id())
        if order.tools:
            order = dataclasses.replace(order, tools=select_tools(self._tools, order.tools))
        key = order.caller, order.id
        before = self._open.get(key)
        if key in self._opening or (before is not None and before.live.ended is None):
            raise SessionExists(f"a session with the id {order.id!r} is open already; choose another", id=order.id)
        self._opening[key] = asyncio.Event()
        try:
            if before is not None:
                await before.live.close()  # it has ended, but is not forgotten yet
            await self._reserve(order.caller, 1)
            try:
                session = _Session(order, await self._start(order, first))
                self._open.add(session)
            finally:
                self._release(order.caller, 1)
        finally:
            self._opening.pop(key).set()
        self._opened += 1
        return session.state()

    async def _start(self, order: SessionOrder, first: Execution | None) -> LiveSession:
        live = await self._sandbox.open_session(order)
        try:
            if first is not None:
                await self._slots.run(first, live.run)
            self._slots.check_open()
        except BaseException:
            await live.close()
            raise
        return live

    async def _reserve(self, caller: str, count: int) -> None:
        """Count `count` more sessions of `caller` as open already, if there may be so many."""
        most = self._settings.max_sessions
        most_each = min(self._settings.max_per_caller or most, most)
        if count > most_each:
            raise InvalidExecution(
                f"count is {count}, but there may be {most_each} sessions; ask for fewer", field="count"
            )
        while True:
            own = sum(1 for each in self._open if each.order.caller == caller) + self._reserved[caller]
            everyone = len(self._open) + self._reserved.total()
            too_many_own = own + count > most_each
            if not too_many_own and everyone + count <= most:
                self._reserved[caller] += count
                return
            victim = self._open.oldest_idle(caller if too_many_own else None)
            idle = [each.order.caller for each in self._open if not each.is_busy]
            is_possible = own - idle.count(caller) + count <= most_each and everyone - len(idle) + count <= most
            if victim is None or not is_possible or self._settings.when_full != "replace_oldest_idle":
                raise self._full(own, everyone, count, most_each if too_many_own else 0)
            await self._open.close(victim, "replaced")

    def _release(self, caller: str, count: int) -> None:
        self._reserved[caller] -= count
        if not self._reserved[caller]:
            del self._reserved[caller]

    def _full(self, own: int, everyone: int, count: int, most_each: int) -> TooManySessions:
        """`most_each`: how many the caller may have; 0 if all callers together have too many."""
        have = f"you have {own}" if most_each else f"there are {everyone}"
        most = most_each or self._settings.max_sessions
        now = time.monotonic()
        soonest = min((each.idle_until for each in self._open if not each.is_busy), default=now)
        return TooManySessions(
            f"{have} of the {most} sessions that there may be, and {count} more do not fit; close one, or wait",
            retry_after_seconds=min(max(1.0, soonest - now), _RETRY_SECONDS_MAX),
        )

    # ---- showing

    def list(self, caller: str) -> list[SessionState]:
        """The open sessions of this caller, oldest first."""
        return [each.state() for each in self._open if each.order.caller == caller]

    def get(self, caller: str, id: str) -> SessionState:
        """One session. Raises SessionNotFound, SessionEnded."""
        return self._open.find(caller, id).state()

    # ---- cells

    async def run(
        self,
        caller: str,
        id: str,
        cell: Execution,
        *,
        waits: bool = True,
        execution_id: str | None = None,
        watcher: Watcher | None = None,
    ) -> Outcome:
        """Run one cell; a second one waits for the first, or is refused. Cancelling interrupts it.

        Raises:
            SessionNotFound, SessionEnded, SessionBusy, Overloaded, SandboxFault.
        """
        session = self._open.find(caller, id)
        if session.is_busy and not waits:
            raise SessionBusy(
                f"session {_show(id)} runs a cell; wait for it, or interrupt it", id=str(id)[:_SHOWN_CHARACTERS]
            )
        async with session.lock:
            self._open.find(caller, id)  # it may have ended while the cell waited
            numbered: list[int] = []

            async def run_cell(cell: Execution, watcher: Watcher | None) -> Evidence:
                self._open.find(caller, id)  # … for its slot, too
                session.cells += 1
                numbered.append(session.cells)
                return await session.live.run(cell, watcher)

            try:
                outcome = await self._slots.run(cell, run_cell, execution_id, watcher)
            finally:
                session.touch()
        number = numbered[0] if numbered else session.cells + 1
        outcome = dataclasses.replace(outcome, cell=number, language=session.order.language)
        if self.on_cell is not None:
            self.on_cell(id, cell, outcome)
        return outcome

    def stream(
        self, caller: str, id: str, cell: Execution, *, waits: bool = True, execution_id: str | None = None
    ) -> AsyncGenerator[Event, None]:
        """Run one cell and yield what it does while it does it; closing this early interrupts it first."""
        execution_id = execution_id or new_id()
        return follow(
            execution_id,
            lambda watcher: self.run(caller, id, cell, waits=waits, execution_id=execution_id, watcher=watcher),
        )

    def interrupt(self, caller: str, id: str) -> bool:
        """Raise KeyboardInterrupt in the running cell; False if no cell runs."""
        session = self._open.find(caller, id)
        if session.is_busy:
            session.live.interrupt()
        return session.is_busy

    async def branch(self, caller: str, id: str, count: int = 1, *, reseed: bool = True) -> Sequence[SessionState]:
        """`count` independent copies of the live state: all of them, or none.

        Raises:
            CannotBranch: the state cannot be copied now; the message says why.
            SessionNotFound, SessionEnded, SessionBusy, TooManySessions.
        """
        _check_count(count)
        session = self._open.find(caller, id)
        if session.is_busy:
            raise SessionBusy(
                f"session {_show(id)} runs a cell; branch it when that has ended", id=str(id)[:_SHOWN_CHARACTERS]
            )
        self._slots.check_open()
        async with session.lock:
            await self._reserve(caller, count)
            try:
                copies = await _all_or_none([session.live.branch(reseed) for _ in range(count)])
            finally:
                self._release(caller, count)
                session.touch()
        made = [
            _Session(dataclasses.replace(session.order, id=_new_session_id(), files=()), each, parent=id)
            for each in copies
        ]
        for each in made:
            each.cells = session.cells
            self._open.add(each)
        self._branched += count
        return [each.state() for each in made]

    # ---- files

    async def write_file(self, caller: str, id: str, path: str, content: bytes) -> None:
        """Make or replace a file in the work directory."""
        await self._use(caller, id).write_file(path, content)

    async def read_file(self, caller: str, id: str, path: str) -> bytes:
        """The content of a file in the work directory."""
        return await self._use(caller, id).read_file(path)

    async def delete_file(self, caller: str, id: str, path: str) -> None:
        """Remove a file of the work directory."""
        await self._use(caller, id).delete_file(path)

    async def list_files(self, caller: str, id: str) -> Sequence[WorkFile]:
        """Every regular file of the work directory."""
        return await self._use(caller, id).list_files()

    def _use(self, caller: str, id: str) -> LiveSession:
        session = self._open.find(caller, id)
        session.touch()
        return session.live

    # ---- ending

    async def close(self, caller: str, id: str, reason: str = "closed") -> None:
        """End a session, with whatever runs in it.

        Raises:
            SessionNotFound, SessionEnded.
        """
        await self._open.close(self._open.find(caller, id), reason)

    async def replace_oldest(self, caller: str) -> bool:
        """End the idle session of this caller that was unused for longest; False if all are busy."""
        victim = self._open.oldest_idle(caller)
        if victim is not None:
            await self._open.close(victim, "replaced")
        return victim is not None

    async def end_all(self) -> None:
        """End every session; an error in one is logged, and does not keep the others open."""
        await self._open.close_all()

    def _count_end(self, session: _Session, reason: str) -> None:
        self._ended[reason] += 1
        if self.on_end is not None:
            self.on_end(session.order.id, reason, session.cells)

    def facts(self) -> Mapping[str, Any]:
        """Numbers for monitoring: how many are open and busy, and how many ended for which reason."""
        return {
            "open": len(self._open),
            "busy": sum(each.is_busy for each in self._open),
            "max_open": self._settings.max_sessions,
            "opened": self._opened,
            "branched": self._branched,
            "ended": dict(self._ended),
        }


def select_tools(tools: ToolHost | None, names: Sequence[str]) -> tuple[str, ...]:
    """The keys of the tools that are named.

    Raises:
        UnknownTool: one does not exist. NotOffered: this engine has no tools.
    """
    if tools is None:
        raise NotOffered("tools are not offered here; leave them out", field="tools")
    return tools.select(names)


def _new_session_id() -> str:
    """An id that cannot be guessed."""
    return "s_" + os.urandom(16).hex()


async def _all_or_none(branching: Sequence[Coroutine[Any, Any, LiveSession]]) -> list[LiveSession]:
    """Every copy; if one could not be made, or the request was cancelled, the others are closed again.

    Copying is never stopped halfway: the session would be lost.
    """
    working = asyncio.gather(*branching, return_exceptions=True)
    try:
        made = await asyncio.shield(working)
        failed = next((each for each in made if isinstance(each, BaseException)), None)
    except asyncio.CancelledError as cancelled:
        failed = cancelled
        await wait_until_done(working)
    copies = [each for each in working.result() if not isinstance(each, BaseException)]
    if failed is not None:
        await asyncio.gather(*(each.close() for each in copies), return_exceptions=True)
        raise failed
    return copies


def _check_count(count: object) -> None:
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise InvalidExecution(f"count is {_show(count)} but must be a whole number from 1 on", field="count")


def _show(id: object) -> str:
    return repr(id)[:_SHOWN_CHARACTERS]
