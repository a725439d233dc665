"""One HTTP request as a route sees it: caller, headers, body within bounds, and whether the client is connected."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import starlette.requests
from starlette.types import Message, Receive, Scope, Send

from belljar.contract.execution import Outcome
from belljar.frontends.access.callers import Caller, Callers, MemoryBudget
from belljar.frontends.access.refusals import Refusal
from belljar.frontends.api import large_bodies
from belljar.frontends.api.large_answers import LARGE, LATER, pieces_of
from belljar.frontends.api.responses import JSON_TYPE, NO_SNIFFING, Answer

if TYPE_CHECKING:
    from belljar.frontends.api.routing import Dialect

REQUEST = "belljar.request"  # in a request's scope: the `Request` itself
CONNECTION = "belljar.connection"  # in a request's scope: the `Connection` that it arrived on
NDJSON = b"application/x-ndjson"
SSE = b"text/event-stream"
_JOINED_BYTES_MAX = 4 * 1024 * 1024  # joining more takes so long that a thread does it
_LINGER_SECONDS = 2.0
_LINGER_BYTES = 256 * 1024 * 1024
_LENGTH = re.compile(rb"[0-9]{1,18}")

_T = TypeVar("_T")
_U = TypeVar("_U")


async def decode(
    body: bytes, read: Callable[[bytes], _T], use: Callable[[_T], _U], at_once_bytes: int = large_bodies.AT_ONCE_BYTES
) -> _U:
    """Return `use(read(body))`; a large body is decoded in a thread, within bounds on what it may hold.

    Raises:
        Refusal: 413 if the body holds too many values, 400 if it is not JSON; and whatever `read` and `use` raise.
    """
    if len(body) <= at_once_bytes:
        return use(read(body))
    return await large_bodies.decode(body, read, use)


class Request(starlette.requests.Request):
    """A request that counts the memory of its body and its answer. Valid until its handler returns."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, memory: MemoryBudget, caller: Caller) -> None:
        super().__init__(scope, receive, send)
        scope[REQUEST] = self
        self.send = send
        self.header_bytes: dict[bytes, bytes] = dict(scope["headers"])  # what every request is checked for is here
        self.caller = caller
        self.dialect: Dialect | None = None
        self._memory = memory
        self._taken = 0  # of the body
        self._kept = 0  # of the answer

    def identify(self, callers: Callers) -> None:
        """Set the caller to the one whose key the request has.

        Raises:
            Refusal: the key is missing or unknown.
        """
        self.caller = callers.identify(self.header_bytes, self.address)

    @property
    def address(self) -> str:
        """The client's IP address; empty if unknown."""
        client = self.scope["client"]
        return client[0] if client else ""

    async def json_body(self) -> bytes:
        """Like `body`, for one that must be declared as JSON."""
        self._check_type()
        return await self.body()

    async def body(self) -> bytes:
        """The whole body.

        Raises:
            Refusal: it is too large.
            Overloaded: too many large bodies are being read.
            ConnectionError: the client left before sending all of it.
            RuntimeError: it was read before. It is not kept: a large one would hold its memory for the whole run.
        """
        declared = self.header_bytes.get(b"content-length")
        if declared is not None:
            size = int(declared) if _LENGTH.fullmatch(declared) else 0
            if size > self._memory.each_bytes:
                raise self._too_large()
        pieces = [await self._next_piece()]
        while not self._stream_consumed:
            pieces.append(await self._next_piece())
        if len(pieces) == 1:
            return pieces[0]
        if self._taken > _JOINED_BYTES_MAX:
            return await asyncio.to_thread(b"".join, pieces)
        return b"".join(pieces)

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """The body piece by piece, within the same bounds, and once."""
        while True:
            yield await self._next_piece()
            if self._stream_consumed:
                return

    def wanted_stream(self) -> bytes | None:
        """The kind of stream that the client accepts (NDJSON or SSE), or None for one JSON document."""
        accept = self.header_bytes.get(b"accept")
        if accept is None or accept == b"*/*":
            return None
        for part in accept.split(b","):
            kind = part.partition(b";")[0].strip().lower()
            if kind in (NDJSON, SSE):
                return kind
            if kind == b"application/json":
                return None
        return None

    async def answer_outcome(self, outcome: Outcome) -> Answer | None:
        """The answer with an outcome; a large one is sent here in pieces, and counted until the client has read it.

        The pieces are made twice: first for their length, which clients rely on.

        Raises:
            ConnectionError: the client left.
        """
        size = outcome.size_bytes
        if size <= LARGE:
            return Answer(outcome.as_json())
        self.keep(size)
        tree = outcome.as_json(LATER)
        length = 0
        for piece in pieces_of(tree):
            length += len(piece)
            await asyncio.sleep(0)
        await self.begin(JSON_TYPE, (b"content-length", b"%d" % length))
        await self.send_pieces(pieces_of(tree))
        await self.end()
        return None

    async def begin(self, *headers: tuple[bytes, bytes]) -> None:
        """Begin an answer that is sent in pieces."""
        await self.send({"type": "http.response.start", "status": 200, "headers": [*headers, NO_SNIFFING]})

    async def send_piece(self, piece: bytes) -> None:
        """Send a piece of an answer; waits while the client reads more slowly."""
        await self.send({"type": "http.response.body", "body": piece, "more_body": True})

    async def end(self) -> None:
        """End an answer that was sent in pieces."""
        await self.send({"type": "http.response.body", "body": b""})

    async def send_pieces(self, pieces: Iterable[bytes]) -> None:
        """Like `send_piece` for each of them.

        Raises:
            ConnectionError: the client left.
        """
        connection = self.scope[CONNECTION]
        for piece in pieces:
            if connection.transport.is_closing():
                raise ConnectionError("the client left")
            await self.send_piece(piece)
            await asyncio.sleep(0)

    async def drained(self) -> None:
        """Wait until the client has read the answer, except for a rest that is too small to count."""
        connection = self.scope[CONNECTION]
        if connection.flow.write_paused:
            self.keep(connection.transport.get_write_buffer_size())
            await connection.flow.drain()

    async def keep_ahead(self, size: int) -> int:
        """Like `keep`, for an answer that may become that large; waits for room, and returns what was counted.

        Raises:
            Overloaded: there was no room for some seconds.
        """
        size = min(size, self._memory.all_bytes // 2)
        await self._memory.wait_to_answer(self.caller, size)
        self.keep(size)
        return size

    def keep(self, size: int) -> None:
        """Count an answer of this many bytes until the request ends, even if there is no room for it."""
        self._memory.keep(self.caller, size)
        self._kept += size

    def let_go(self, size: int) -> None:
        """Undo some of `keep`."""
        self._memory.let_go(self.caller, size)
        self._kept -= size

    def on_hang_up(self, notify: Callable[[], object]) -> None:
        """Call `notify` if the client leaves before its answer is complete. Only after the body was read."""
        self.scope[CONNECTION].on_hang_up(notify)

    async def while_connected(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run `work` as long as the client is connected. Only after the body was read.

        Raises:
            ConnectionError: the client left; `work` was cancelled and has ended.
        """
        task = asyncio.ensure_future(work)
        self.on_hang_up(task.cancel)
        try:
            return await task
        except asyncio.CancelledError:
            if (current := asyncio.current_task()) is not None and current.cancelling():
                raise
            raise ConnectionError("the client left") from None

    async def linger(self) -> None:
        """Read what a client is still sending, for a while: closing at once would lose the answer."""
        if self._stream_consumed:
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
        """Give back all memory that was counted for this request; forget its scope's reference to it."""
        self.scope.pop(REQUEST, None)
        if self._taken:
            self._memory.give_back(self.caller, self._taken)
            self._taken = 0
        if self._kept:
            self.let_go(self._kept)

    def _check_type(self) -> None:
        """A web page of another origin can make a browser send text/plain without a preflight request, but not JSON."""
        kind = self.header_bytes.get(b"content-type", b"")
        if kind != b"application/json" and kind.partition(b";")[0].strip().lower() != b"application/json":
            raise Refusal(
                400, "not_json", "the body is not declared as JSON; send it with 'Content-Type: application/json'"
            )

    def _too_large(self) -> Refusal:
        most = self._memory.each_bytes
        return Refusal(
            413,
            "too_large",
            f"the body is larger than the {most:,} bytes that this server accepts; send less, or several requests",
            {"max": most},
        )

    async def _next_piece(self) -> bytes:
        if self._stream_consumed:
            raise RuntimeError("the body was read already")
        message: Message = await self.receive()
        if message["type"] != "http.request":
            raise ConnectionError("the client left")
        piece: bytes = message.get("body", b"")
        size = len(piece)
        if self._taken + size > self._memory.each_bytes:
            raise self._too_large()
        self._memory.take(self.caller, size, self._taken)
        self._taken += size
        self._stream_consumed = not message.get("more_body")
        return piece
