"""Streams an execution as it happens, one JSON object per line (NDJSON) or per event (SSE).

Nothing is sent before the program has started: until then an error can still set the HTTP status. After that an error
is the last event of the stream.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncGenerator
from typing import Any

from belljar.contract.execution import Display, Event, Execution, Finished, describe
from belljar.engine.outcomes import new_id
from belljar.frontends.api.context import Service
from belljar.frontends.api.large_answers import LARGE, LATER, pieces_of
from belljar.frontends.api.request import SSE, Request
from belljar.frontends.api.responses import encode_json

_LINE_BREAKS = tuple((chr(each).encode(), b"\\u%04x" % each) for each in (0x85, 0x2028, 0x2029))


class Stream:
    """The body of a streaming answer."""

    def __init__(self, request: Request, kind: bytes) -> None:
        self._request = request
        self._kind = kind
        self.has_begun = False

    async def send(self, event: dict[str, Any]) -> None:
        """Send one event; waits while the client reads more slowly than the program writes."""
        if not self.has_begun:
            await self._begin()
        line = _on_one_line(encode_json(event))
        if self._kind == SSE:
            body = b"event: %b\ndata: %b\n\n" % (event["event"].encode(), line)
        else:
            body = line + b"\n"
        await self._request.send_piece(body)

    async def send_whole(self, event: Display | Finished) -> None:
        """Send an event that may be large; a large one is counted until it is sent."""
        size = len(event.content) if isinstance(event, Display) else event.outcome.size_bytes
        if size <= LARGE:
            await self.send(describe(event))
            return
        self._request.keep(size)
        await self.send_large(describe(event, LATER))
        self._request.let_go(size)

    async def send_large(self, event: dict[str, Any]) -> None:
        """Send an event that was described with `LATER`, in pieces."""
        if not self.has_begun:
            await self._begin()
        begin, end = b"", b"\n"
        if self._kind == SSE:
            begin, end = b"event: %b\ndata: " % event["event"].encode(), b"\n\n"
        lines = map(_on_one_line, pieces_of(event))
        await self._request.send_pieces(itertools.chain((begin,), lines, (end,)))

    async def _begin(self) -> None:
        self.has_begun = True
        await self._request.begin(
            (b"content-type", self._kind + b"; charset=utf-8" if self._kind == SSE else self._kind),
            (b"cache-control", b"no-store"),
            (b"x-accel-buffering", b"no"),  # else a proxy may buffer the whole stream
        )


def _on_one_line(text: bytes) -> bytes:
    """JSON with the characters escaped that some clients wrongly take for the end of a line."""
    for character, escape in _LINE_BREAKS:
        if character in text:
            text = text.replace(character, escape)
    return text


async def stream_execution(service: Service, request: Request, execution: Execution, kind: bytes) -> None:
    """Run a program and stream what it does; a client that hangs up ends it."""
    execution_id = new_id()
    request.on_hang_up(lambda: service.engine.cancel(execution_id))
    events = service.engine.stream(execution, id=execution_id)
    stream = Stream(request, kind)
    await send_events(service, stream, events)
    await request.end()


async def send_events(service: Service, stream: Stream, events: AsyncGenerator[Event, None]) -> None:
    """Send all events, and close `events`."""
    try:
        async with contextlib.aclosing(events):
            async for event in events:
                if isinstance(event, Finished | Display):
                    await stream.send_whole(event)
                else:
                    await stream.send(describe(event))
    except ConnectionError:
        raise  # the client has left
    except Exception as error:  # the status is sent, so the error can only be reported in the stream
        if not stream.has_begun:
            raise
        await stream.send({"event": "error", **service.refuse(error).as_json()})
