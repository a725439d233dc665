"""Background runs: how many there may be, and their event logs until a client reads them.

A client that submits a run is answered at once, so its connection does not bound the number of runs. Each run has a log
of its own, so that no client reads the events of another run.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Coroutine, Iterator, Mapping
from typing import Any

from belljar.contract.errors import QueueFull
from belljar.frontends.api.responses import encode_json
from belljar.settings import Settings

_CALLERS_SHARE = 4  # one caller may have a quarter, so that there is room for others

_LOG_BYTES = 8 * 1024 * 1024  # unread, of one run; lines that do not fit are dropped, except the last ones
_RUNS_MAX = 16  # unread, of one session; the oldest is dropped
_SESSIONS_MAX = 4096
_KEPT_SECONDS = 3600.0  # after the last use

Key = tuple[str, str]  # caller and session id


class BackgroundJobs:
    """Running background runs: bounded in number by the queue, and in size by the memory for request bodies."""

    def __init__(self) -> None:
        self._runs: Counter[str] = Counter()  # by caller
        self._bytes: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()

    @contextlib.contextmanager
    def room(self, settings: Settings, caller: str, size: int) -> Iterator[None]:
        """Reserve room for one run that was requested with `size` bytes.

        Raises:
            QueueFull: there is no room.
        """
        self._check(settings, caller, size)
        self._runs[caller] += 1
        self._bytes[caller] += size
        try:
            yield
        finally:
            self._bytes[caller] -= size
            self._runs[caller] -= 1
            if not self._runs[caller]:
                del self._runs[caller], self._bytes[caller]

    def start(self, work: Coroutine[Any, Any, None], held: contextlib.ExitStack) -> None:
        """Start a run; `held` is closed at its end."""
        task = asyncio.create_task(work)
        self._tasks.add(task)

        def end(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            held.close()

        task.add_done_callback(end)

    def _check(self, settings: Settings, caller: str, size: int) -> None:
        most_runs, most_bytes = settings.pool.max_running + settings.pool.max_queued, settings.server.bodies_bytes
        own_runs, own_bytes = max(1, most_runs // _CALLERS_SHARE), max(most_bytes // _CALLERS_SHARE, size)
        if self._runs[caller] >= own_runs or self._bytes[caller] + size > own_bytes:
            raise _full(f"{self._runs[caller]} of your runs are")
        if self._runs.total() >= most_runs or self._bytes.total() + size > most_bytes:
            raise _full(f"{self._runs.total()} runs are")


def _full(runs: str) -> QueueFull:
    return QueueFull(f"{runs} in progress in the background, which is the limit; wait for one to finish")


def make_line(main_type: str, state: str, other_info: Mapping[str, Any] | None = None, *, content: str = "") -> bytes:
    """One line of the original's stream."""
    item = {
        "main_stream_type": main_type,
        "sub_stream_type": "",
        "content": content,
        "from_sandbox": True,
        "stream_state": state,
        "other_info": other_info or {},
    }
    return encode_json(item) + b"\n"


class EventLog:
    """The unread lines of one run."""

    def __init__(self) -> None:
        self.is_over = False
        self._lines: deque[bytes] = deque()
        self._bytes = 0
        self._changed = asyncio.Event()

    def put(self, line: bytes) -> bool:
        """Add a line; False if there is no room for it, or the run has ended."""
        if self.is_over or self._bytes + len(line) > _LOG_BYTES:
            return False
        self._add(line)
        return True

    def end(self, *lines: bytes) -> None:
        """Add the last lines, for which there is always room."""
        for line in lines:
            self._add(line)
        self.is_over = True
        self._changed.set()

    async def next(self) -> bytes | None:
        """Wait for the oldest line and remove it; None after the last."""
        while not self._lines:
            if self.is_over:
                return None
            self._changed.clear()
            await self._changed.wait()
        line = self._lines.popleft()
        self._bytes -= len(line)
        return line

    def put_back(self, line: bytes) -> None:
        """Put a line back that could not be sent."""
        self._lines.appendleft(line)
        self._bytes += len(line)

    @property
    def is_read(self) -> bool:
        """Whether all lines were read."""
        return self.is_over and not self._lines

    def _add(self, line: bytes) -> None:
        self._lines.append(line)
        self._bytes += len(line)
        self._changed.set()


class EventLogs:
    """The event logs of every session."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[Key, _SessionLogs] = OrderedDict()

    def knows(self, key: Key) -> bool:
        """Whether a run under that id is remembered."""
        return key in self._sessions

    def touch(self, key: Key) -> _SessionLogs:
        """The logs of a session; marks them as used, and forgets sessions that were not used for long."""
        logs = self._sessions.get(key)
        if logs is None:
            logs = self._sessions[key] = _SessionLogs()
        logs.used_at = now = time.monotonic()
        self._sessions.move_to_end(key)
        while len(self._sessions) > _SESSIONS_MAX or now - next(iter(self._sessions.values())).used_at > _KEPT_SECONDS:
            self._sessions.popitem(last=False)
        return logs

    def new(self, key: Key) -> EventLog:
        """A log for a run that starts now."""
        logs = self.touch(key)
        log = EventLog()
        logs.unread.append(log)
        logs.changed.set()
        if len(logs.unread) > _RUNS_MAX:
            logs.unread.popleft()
        return log

    async def take(self, key: Key) -> EventLog:
        """Wait for the oldest log without a reader, and remove it."""
        logs = self.touch(key)
        while not logs.unread:
            logs.changed.clear()
            await logs.changed.wait()
        return logs.unread.popleft()

    def put(self, key: Key, text: bytes) -> bool:
        """Add a line to the session's current run. Raises KeyError if the session is unknown."""
        logs = self._sessions[key]
        running = next((log for log in (*logs.unread, *logs.being_read) if not log.is_over), None)
        return running is not None and running.put(text)

    def forget(self, key: Key) -> None:
        self._sessions.pop(key, None)


class _SessionLogs:
    """The event logs of one session."""

    def __init__(self) -> None:
        self.unread: deque[EventLog] = deque()
        self.being_read: set[EventLog] = set()
        self.changed = asyncio.Event()
        self.used_at = 0.0

    def put_back(self, log: EventLog) -> None:
        """The reader of a log has left; the next one continues where it stopped."""
        self.being_read.discard(log)
        if not log.is_read:
            self.unread.appendleft(log)
            self.changed.set()
