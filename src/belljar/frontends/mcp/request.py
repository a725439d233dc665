"""One request to /mcp: who sent it, whether he still waits, and in which form he gets his answer.

A call that asks for no progress is told one thing, its result: one JSON document is enough, and saves a third of what
MCP costs beside the plain API. The SDK has a switch for that, but for a whole server, where calls that do ask would
then be told nothing; so the switch it is given looks at the request at hand. A program that runs for long is another
matter: proxies hang up on who is silent, so after a while such an answer becomes a stream after all, with a ping now
and then and the same document at its end.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any

import msgspec

from belljar.frontends.access.callers import Caller
from belljar.frontends.api.responses import Message, Receive, Send

SILENT_SECONDS = 15.0  # before a proxy may take us for dead
_IS_SHORT: ContextVar[bool] = ContextVar("belljar_mcp_is_short", default=False)
_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]


class ShortIfAsked:
    """The SDK's switch between one JSON document and a stream of events, as it stands for the current request."""

    def __bool__(self) -> bool:
        return _IS_SHORT.get()


class HttpRequest:
    """Lasts as long as its request; close it then."""

    def __init__(self, caller: Caller, receive: Receive, send: Send) -> None:
        self.caller = caller
        self.body = b""
        self._receive = receive
        self._send = send
        self._is_read = False
        self._is_answered = False
        self._has_left = False
        self._report: Callable[[], object] | None = None
        self._patience: asyncio.TimerHandle | None = None
        self._stream: _Stream | None = None

    def shorten(self, silent_seconds: float = SILENT_SECONDS) -> None:
        """From here on this request is answered with one document, if that does not take too long."""
        _IS_SHORT.set(True)
        self._patience = asyncio.get_running_loop().call_later(silent_seconds, self._begin_stream, silent_seconds)

    def on_leaving(self, tell: Callable[[], object]) -> None:
        """Call `tell` when the client hangs up before it has its answer."""
        self._report = tell
        if self._has_left:
            tell()

    def leave(self) -> None:
        """The connection is over, or the answer is complete."""
        if not self._is_answered:
            self._has_left = True
            if self._report is not None:
                self._report()

    async def receive(self) -> Message:
        """The body at once, then only the end of the connection."""
        if not self._is_read:
            self._is_read = True
            return {"type": "http.request", "body": self.body, "more_body": False}
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self.leave()
        return message

    async def send(self, message: Message) -> None:
        """Pass it on; remember when it was the last."""
        is_last = message["type"] == "http.response.body" and not message.get("more_body")
        self._is_answered = self._is_answered or is_last
        if self._patience is not None:
            self._patience.cancel()
        if self._stream is None:
            await self._send(message)
        elif is_last:
            await self._stream.end(message["body"])

    def close(self) -> None:
        """Nothing of it is left behind."""
        if self._patience is not None:
            self._patience.cancel()
        if self._stream is not None:
            self._stream.stop()

    def _begin_stream(self, silent_seconds: float) -> None:
        self._stream = _Stream(self._send, silent_seconds)


class _Stream:
    """An answer that begins before there is one."""

    def __init__(self, send: Send, silent_seconds: float) -> None:
        self._send = send
        self._silent_seconds = silent_seconds
        self._is_over = asyncio.Event()
        self._pings = asyncio.create_task(self._ping())

    async def end(self, document: bytes) -> None:
        """Say at last what there is to say. Its status is 200 by now, whatever it would have been."""
        self.stop()
        await self._pings
        await self._send({"type": "http.response.body", "body": b"event: message\r\ndata: %b\r\n\r\n" % document})

    def stop(self) -> None:
        """No more pings."""
        self._is_over.set()

    async def _ping(self) -> None:
        await self._send({"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS})
        while not self._is_over.is_set():
            await self._send({"type": "http.response.body", "body": b": ping\r\n\r\n", "more_body": True})
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._silent_seconds):
                    await self._is_over.wait()


class _Meta(msgspec.Struct):
    progress_token: Any = msgspec.field(name="progressToken", default=None)


class _Params(msgspec.Struct):
    meta: _Meta | None = msgspec.field(name="_meta", default=None)


class _Message(msgspec.Struct):
    method: str
    params: _Params


_decode = msgspec.json.Decoder(_Message).decode


def wants_only_its_result(headers: Mapping[bytes, bytes], body: bytes) -> bool:
    """Whether this is a call of a tool, without progress, by a client that takes either form. Others are the SDK's."""
    accepted = headers.get(b"accept", b"").lower()
    if b"application/json" not in accepted or b"text/event-stream" not in accepted:
        return False
    try:
        message = _decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    meta = message.params.meta
    return message.method == "tools/call" and (meta is None or meta.progress_token is None)
