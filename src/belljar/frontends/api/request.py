"""One request as a route sees it: who asks, the headers, the body within bounds, and whether anybody still listens."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from belljar.contract.errors import Overloaded
from belljar.frontends.api.callers import Caller
from belljar.frontends.api.replies import Receive, Refusal, Send

if TYPE_CHECKING:
    from belljar.frontends.api.routing import Dialect

CONNECTION = "belljar.connection"  # in a request's scope: the `Connection` that it came by
_SMALL_BYTES = 64 * 1024  # bodies up to here are not worth counting
_LINGER_SECONDS = 2.0
_LINGER_BYTES = 256 * 1024 * 1024
_LENGTH = re.compile(rb"[0-9]{1,18}")

_T = TypeVar("_T")


class BodyRoom:
    """Memory for the bodies of all requests together: many that are each within bounds must not fill the machine."""

    def __init__(self, each_bytes: int, all_bytes: int) -> None:
        self.each_bytes = each_bytes
        self._free_bytes = all_bytes

    def take(self, size: int) -> None:
        """Raises Overloaded when there is too little left."""
        if size > self._free_bytes:
            raise Overloaded("too many large requests are under way; try again soon", retry_after_seconds=2.0)
        self._free_bytes -= size

    def give_back(self, size: int) -> None:
        """Undo a `take`."""
        self._free_bytes += size


class Request:
    """Valid until its route returns."""

    __slots__ = ("_room", "_taken", "caller", "dialect", "headers", "is_read", "parameters", "receive", "scope", "send")

    def __init__(
        self, scope: Mapping[str, Any], headers: dict[bytes, bytes], receive: Receive, send: Send, room: BodyRoom
    ) -> None:
        self.scope = scope
        self.headers = headers
        self.receive = receive
        self.send = send
        self.parameters: Mapping[str, str] = {}
        self.caller: Caller
        self.dialect: Dialect | None = None
        self._room = room
        self._taken = 0
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
            self._reserve(size)
        message = await self.receive()
        body = self._piece(message)
        if not message.get("more_body"):
            self.is_read = True
            return body
        pieces, size = [body], len(body)
        while message.get("more_body"):
            message = await self.receive()
            piece = self._piece(message)
            size += len(piece)
            if size > self._room.each_bytes:
                raise self._too_large()
            self._reserve(size)
            pieces.append(piece)
        self.is_read = True
        return b"".join(pieces)

    def hold(self, size: int) -> None:
        """Count an answer of this many bytes with the bodies, until it is sent.

        Raises:
            Overloaded: too many large ones are under way.
        """
        self._reserve(self._taken + size)

    def on_hang_up(self, tell: Callable[[], object]) -> None:
        """Call `tell` if the client leaves before its answer is complete. Only after the body was read."""
        self.scope[CONNECTION].on_hang_up(tell)

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
        """Give the memory of the body back."""
        if self._taken:
            self._room.give_back(self._taken)
            self._taken = 0

    def _reserve(self, size: int) -> None:
        if size > _SMALL_BYTES and size > self._taken:
            self._room.take(size - self._taken)
            self._taken = size

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

    @staticmethod
    def _piece(message: Mapping[str, Any]) -> bytes:
        if message["type"] != "http.request":
            raise ConnectionError("the client left")
        body: bytes = message.get("body", b"")
        return body
