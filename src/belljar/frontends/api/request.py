"""One request as a route sees it: who asks, the headers, the body within bounds, and whether anybody still listens."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from belljar.frontends.access.callers import Caller
from belljar.frontends.api.memory_budget import BodyRoom, Holder
from belljar.frontends.api.responses import JSON_TYPE, NO_SNIFFING, Headers, Receive, Refusal, Send

if TYPE_CHECKING:
    from belljar.frontends.api.routing import Dialect

CONNECTION = "belljar.connection"  # in a request's scope: the `Connection` that it came by
_JOINED_BYTES_MAX = 4 * 1024 * 1024  # joining more takes so long that a thread does it
_LINGER_SECONDS = 2.0
_LINGER_BYTES = 256 * 1024 * 1024
_LENGTH = re.compile(rb"[0-9]{1,18}")

_UNKNOWN: Any = Holder()  # of paths that are open to all

_T = TypeVar("_T")


class Request:
    """Valid until its route returns."""

    __slots__ = (
        *("_kept", "_room", "_taken", "caller", "dialect", "headers", "is_read", "parameters", "receive", "scope"),
        "send",
    )

    def __init__(
        self, scope: Mapping[str, Any], headers: dict[bytes, bytes], receive: Receive, send: Send, room: BodyRoom
    ) -> None:
        self.scope = scope
        self.headers = headers
        self.receive = receive
        self.send = send
        self.parameters: Mapping[str, str] = {}
        self.caller: Caller = _UNKNOWN
        self.dialect: Dialect | None = None
        self._room = room
        self._taken = 0  # of the body
        self._kept = 0  # of the answer
        self.is_read = False

    async def read(self, *, is_json: bool = True) -> bytes:
        """The whole body.

        Raises:
            Refusal: it is too large, or not declared to be JSON.
            Overloaded: too many large ones are being read.
            ConnectionError: the client left before sending all of it.
        """
        if is_json:
            self._check_type()
        declared = self.headers.get(b"content-length")
        if declared is not None:
            size = int(declared) if _LENGTH.fullmatch(declared) else 0
            if size > self._room.each_bytes:
                raise self._too_large()
        message = await self.receive()
        body = self._piece(message)
        if not message.get("more_body"):
            self.is_read = True
            return body
        pieces = [body]
        while message.get("more_body"):
            message = await self.receive()
            pieces.append(self._piece(message))
        self.is_read = True
        if self._taken > _JOINED_BYTES_MAX:
            return await asyncio.to_thread(b"".join, pieces)
        return b"".join(pieces)

    async def reply_in_pieces(
        self, pieces: Callable[[], Iterable[bytes]], status: int = 200, headers: Headers = ()
    ) -> None:
        """Send a large JSON answer as the client takes it.

        The pieces are made twice: first for their length, which clients rely on.

        Raises:
            ConnectionError: the client left.
        """
        length = 0
        for piece in pieces():
            length += len(piece)
            await asyncio.sleep(0)
        head = [JSON_TYPE, (b"content-length", b"%d" % length), NO_SNIFFING, *headers]
        await self.send({"type": "http.response.start", "status": status, "headers": head})
        await self.send_pieces(pieces())
        await self.send({"type": "http.response.body", "body": b""})

    async def send_pieces(self, pieces: Iterable[bytes]) -> None:
        """Some more of an answer that has begun; waits while the client reads more slowly.

        Raises:
            ConnectionError: the client left.
        """
        connection = self.scope[CONNECTION]
        for piece in pieces:
            if connection.transport.is_closing():
                raise ConnectionError("the client left")
            await self.send({"type": "http.response.body", "body": piece, "more_body": True})
            await asyncio.sleep(0)

    async def drained(self) -> None:
        """Wait until the client has taken the answer, but for a rest that is not worth counting."""
        connection = self.scope[CONNECTION]
        if connection.flow.write_paused:
            self.keep(connection.transport.get_write_buffer_size())
            await connection.flow.drain()

    async def keep_ahead(self, size: int) -> int:
        """As `keep`, for an answer that may become so large; waits for room, and returns what was counted.

        Raises:
            Overloaded: there was none for some seconds.
        """
        size = min(size, self._room.all_bytes // 2)
        await self._room.wait_to_answer(self.caller, size)
        self.keep(size)
        return size

    def keep(self, size: int) -> None:
        """Count an answer of this many bytes until the request is over, whether there is room for it or not."""
        self._room.keep(self.caller, size)
        self._kept += size

    def let_go(self, size: int) -> None:
        """Undo some of `keep`."""
        self._room.let_go(self.caller, size)
        self._kept -= size

    def on_hang_up(self, send: Callable[[], object]) -> None:
        """Call `tell` if the client leaves before its answer is complete. Only after the body was read."""
        self.scope[CONNECTION].on_hang_up(send)

    async def while_connected(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Do `work` as long as the client is there to hear of it. Only after the body was read.

        Raises:
            ConnectionError: he has left, and `work` was cancelled to its end.
        """
        task = asyncio.ensure_future(work)
        self.on_hang_up(task.cancel)
        try:
            return await task
        except asyncio.CancelledError:
            if (ours := asyncio.current_task()) is not None and ours.cancelling():
                raise
            raise ConnectionError("the client left") from None

    async def linger(self) -> None:
        """Take what a client is still sending, for a while: closing on it would lose it our answer."""
        if self.is_read:
            return
        taken = 0
        try:
            async with asyncio.timeout(_LINGER_SECONDS):
                while taken < _LINGER_BYTES:
                    message = await self.receive()
                    if message["type"] != "http.request" or not message.get("more_body"):
                        return
                    taken += len(message.get("body", b""))
        except TimeoutError:
            return

    def release(self) -> None:
        """Give all memory back that was counted for this request."""
        if self._taken:
            self._room.give_back(self.caller, self._taken)
            self._taken = 0
        if self._kept:
            self.let_go(self._kept)

    def _check_type(self) -> None:
        """A page of another origin can make a browser send text/plain without asking us first, but not JSON."""
        kind = self.headers.get(b"content-type", b"")
        if kind != b"application/json" and kind.partition(b";")[0].strip().lower() != b"application/json":
            raise Refusal(
                400, "not_json", "the body is not declared to be JSON; send it with 'Content-Type: application/json'"
            )

    def _too_large(self) -> Refusal:
        most = self._room.each_bytes
        return Refusal(
            413,
            "too_large",
            f"the body is over the {most:,} bytes taken here; send less, or in several requests",
            {"max": most},
        )

    def _piece(self, message: Mapping[str, Any]) -> bytes:
        if message["type"] != "http.request":
            raise ConnectionError("the client left")
        body: bytes = message.get("body", b"")
        size = len(body)
        if self._taken + size > self._room.each_bytes:
            raise self._too_large()
        self._room.take(self.caller, size, self._taken)
        self._taken += size
        return body
