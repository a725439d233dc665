"""What background runs have to tell, until somebody reads it: one feed per run, so that no run replays another's."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Mapping
from typing import Any

from belljar.frontends.api.responses import encode_json

_FEED_BYTES = 8 * 1024 * 1024  # unread, of one run; what comes between and does not fit is dropped
_RUNS_MAX = 16  # unread, of one session; the oldest is dropped
_SESSIONS_MAX = 4096
_KEPT_SECONDS = 3600.0  # after the last use

Key = tuple[str, str]  # caller and session id


def make_line(main_type: str, state: str, other_info: Mapping[str, Any] | None = None, *, content: str = "") -> bytes:
    """One item of a stream, as its readers know it."""
    item = {
        "main_stream_type": main_type,
        "sub_stream_type": "",
        "content": content,
        "from_sandbox": True,
        "stream_state": state,
        "other_info": other_info or {},
    }
    return encode_json(item) + b"\n"


class Feed:
    """The lines of one run."""

    def __init__(self) -> None:
        self.is_over = False
        self._lines: deque[bytes] = deque()
        self._bytes = 0
        self._news = asyncio.Event()

    def put(self, line: bytes) -> bool:
        """Add a line; False if there is no room for it, or the run is over."""
        if self.is_over or self._bytes + len(line) > _FEED_BYTES:
            return False
        self._add(line)
        return True

    def end(self, *lines: bytes) -> None:
        """The last lines; there is always room for them."""
        for line in lines:
            self._add(line)
        self.is_over = True
        self._news.set()

    async def next(self) -> bytes | None:
        """The oldest line, once there is one; None after the last."""
        while not self._lines:
            if self.is_over:
                return None
            self._news.clear()
            await self._news.wait()
        line = self._lines.popleft()
        self._bytes -= len(line)
        return line

    def put_back(self, line: bytes) -> None:
        """One that could not be told after all."""
        self._lines.appendleft(line)
        self._bytes += len(line)

    @property
    def is_read(self) -> bool:
        """Whether all of it has been told."""
        return self.is_over and not self._lines

    def _add(self, line: bytes) -> None:
        self._lines.append(line)
        self._bytes += len(line)
        self._news.set()


class Feeds:
    """The feeds of every session."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[Key, _LogLine] = OrderedDict()

    def knows(self, key: Key) -> bool:
        """Whether anything was ever run under that id, of late."""
        return key in self._sessions

    def touch(self, key: Key) -> _LogLine:
        """The session's line of feeds."""
        line = self._sessions.get(key)
        if line is None:
            line = self._sessions[key] = _LogLine()
        line.used_at = now = time.monotonic()
        self._sessions.move_to_end(key)
        while len(self._sessions) > _SESSIONS_MAX or now - next(iter(self._sessions.values())).used_at > _KEPT_SECONDS:
            self._sessions.popitem(last=False)
        return line

    def new(self, key: Key) -> Feed:
        """A feed for a run that starts now."""
        line = self.touch(key)
        feed = Feed()
        line.feeds.append(feed)
        line.news.set()
        if len(line.feeds) > _RUNS_MAX:
            line.feeds.popleft()
        return feed

    async def take(self, key: Key) -> Feed:
        """The oldest feed that nobody has read, once there is one."""
        line = self.touch(key)
        while not line.feeds:
            line.news.clear()
            await line.news.wait()
        return line.feeds.popleft()

    def put(self, key: Key, text: bytes) -> bool:
        """Add a line from outside to the run that goes on. Raises KeyError for a session nobody knows."""
        line = self._sessions[key]
        running = next((feed for feed in (*line.feeds, *line.read) if not feed.is_over), None)
        return running is not None and running.put(text)

    def forget(self, key: Key) -> None:
        """The session is deleted."""
        self._sessions.pop(key, None)


class _LogLine:
    """One session's feeds."""

    def __init__(self) -> None:
        self.feeds: deque[Feed] = deque()  # nobody reads them yet
        self.read: set[Feed] = set()  # somebody does
        self.news = asyncio.Event()
        self.used_at = 0.0

    def put_back(self, feed: Feed) -> None:
        """Its reader has left; the next one reads on where that one stopped."""
        self.read.discard(feed)
        if not feed.is_read:
            self.feeds.appendleft(feed)
            self.news.set()
