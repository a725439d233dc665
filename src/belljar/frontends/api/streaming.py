"""An execution told as it happens, one JSON object per line (NDJSON) or per event (SSE).

Nothing is sent before the program has started: until then an error can still be a proper status. From then on it is
an event of its own, the last one.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import AsyncGenerator, Callable
from typing import Any

from belljar.contract.errors import CallerError
from belljar.contract.execution import Display, Event, Execution, Finished, Outcome, describe
from belljar.engine.outcomes import new_id
from belljar.frontends.api.context import Service
from belljar.frontends.api.large_answers import LARGE, LATER, pieces_of
from belljar.frontends.api.request import Request
from belljar.frontends.api.responses import NO_SNIFFING, encode_json, refusal_of

_log = logging.getLogger("belljar.api")

NDJSON = b"application/x-ndjson"
SSE = b"text/event-stream"
_LINE_BREAKS = tuple((chr(each).encode(), b"\\u%04x" % each) for each in (0x85, 0x2028, 0x2029))


def wanted_stream(request: Request) -> bytes | None:
    """Which kind of stream the client asks for, if any."""
    accept = request.headers.get(b"accept")
    if accept is None or accept == b"*/*":
        return None
    for part in accept.split(b","):
        kind = part.partition(b";")[0].strip().lower()
        if kind in (NDJSON, SSE):
            return kind
        if kind == b"application/json":
            return None
    return None


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
        await self._request.send({"type": "http.response.body", "body": body, "more_body": True})

    async def send_whole(self, event: Display | Finished) -> None:
        """Send an event that may be large."""
        size = len(event.content) if isinstance(event, Display) else event.outcome.size_bytes
        if size <= LARGE:
            await self.send(describe(event))
            return
        self._request.keep(size)
        await self.send_large(describe(event, LATER))
        self._request.let_go(size)

    async def send_large(self, event: dict[str, Any]) -> None:
        """Send an event that was made with `LATER`, in pieces."""
        if not self.has_begun:
            await self._begin()
        begin, end = b"", b"\n"
        if self._kind == SSE:
            begin, end = b"event: %b\ndata: " % event["event"].encode(), b"\n\n"
        lines = map(_on_one_line, pieces_of(event))
        await self._request.send_pieces(itertools.chain((begin,), lines, (end,)))

    async def end(self) -> None:
        """No more events."""
        await self._request.send({"type": "http.response.body", "body": b""})

    async def _begin(self) -> None:
        self.has_begun = True
        head = [
            (b"content-type", self._kind + b"; charset=utf-8" if self._kind == SSE else self._kind),
            (b"cache-control", b"no-store"),
            (b"x-accel-buffering", b"no"),  # a proxy that collects would turn a stream into a wait
            NO_SNIFFING,
        ]
        await self._request.send({"type": "http.response.start", "status": 200, "headers": head})


def _on_one_line(text: bytes) -> bytes:
    """JSON with the characters escaped that some readers of lines take for the end of one, though they are not."""
    for character, escape in _LINE_BREAKS:
        if character in text:
            text = text.replace(character, escape)
    return text


async def stream_execution(service: Service, request: Request, execution: Execution, kind: bytes) -> None:
    """Run a program and tell what it does; a client that hangs up ends it."""
    execution_id = new_id()
    request.on_hang_up(lambda: service.engine.cancel(execution_id))
    events = service.engine.stream(execution, id=execution_id)
    stream = Stream(request, kind)
    await send_events(service, stream, events, lambda outcome: service.executed(execution, outcome))
    await stream.end()


async def send_events(
    service: Service, stream: Stream, events: AsyncGenerator[Event, None], finish: Callable[[Outcome], None]
) -> None:
    """Tell all that happens and close `events`; `finish` hears of the outcome."""
    try:
        async with contextlib.aclosing(events):
            async for event in events:
                if isinstance(event, Finished):
                    finish(event.outcome)
                if isinstance(event, Finished | Display):
                    await stream.send_whole(event)
                else:
                    await stream.send(describe(event))
    except ConnectionError:
        raise  # nobody is there to be told
    except Exception as error:  # the status is sent; what is wrong can only be told in the stream
        if not stream.has_begun:
            raise
        refusal = refusal_of(error)
        if not isinstance(error, CallerError):
            _log.error("a stream could not be finished: %s", error, exc_info=error)
            service.health.doubt()
        service.telemetry.refused(refusal.status, refusal.code)
        await stream.send({"event": "error", **refusal.as_json()})
