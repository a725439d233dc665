"""One HTTP connection, with bounds that uvicorn leaves to a proxy in front.

And with one write per answer instead of two: uvloop sends what it is given at once, so the head would travel alone, and
wake the client and us once more for nothing.

A route can ask to be told when its client leaves, which costs it no task.

Who is slow on purpose is let go: in sending a request (its headers within a time, its body at some rate), and in
reading the answer. Nothing is timed per request: each connection notes when it began to wait, and one sweep looks at
all of them.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from belljar.frontends.api.request import CONNECTION
from belljar.frontends.api.responses import Refusal, encode_json

_HEAD_BYTES_MAX = 64 * 1024
_JOINED_BYTES_MAX = 64 * 1024  # copying more costs more than a second write
_BYTES_PER_SECOND = 16 * 1024  # slower than this, in sending or reading, is not a slow line any more
_PROBE = b"HTTP/1.1 100 Continue\r\n\r\n"
_PROBED_SECONDS = (0.02, 0.1, 0.4)  # after a probe; then with every sweep
_WITHOUT_WAITING = struct.pack("ii", 1, 0)  # reset: the kernel, too, forgets what was not taken
_TCP_CLOSE = 7  # the state of a connection that was reset


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What the connections of one server may take."""

    max_connections: int = 8192
    head_seconds: float = 20.0
    send_seconds: float = 60.0


class _Outlet:
    """A transport that keeps an answer's head until its body comes. Only what uvicorn and we use of it."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._head = b""
        self.written_bytes = 0
        self.is_closing = transport.is_closing
        self.abort = transport.abort
        self.get_write_buffer_size = transport.get_write_buffer_size
        self.get_extra_info = transport.get_extra_info

    def write(self, data: bytes) -> None:
        if self._head:
            if len(data) <= _JOINED_BYTES_MAX:
                data, self._head = self._head + data, b""
            else:
                self.flush()
        elif data.startswith(b"HTTP/1.1 ") and data.endswith(b"\r\n\r\n") and not data.startswith(b"HTTP/1.1 100"):
            self._head = data
            return
        self.written_bytes += len(data)
        self._transport.write(data)

    def write_at_once(self, data: bytes) -> None:
        """Before any head."""
        self._transport.write(data)

    def flush(self) -> None:
        if self._head:
            head, self._head = self._head, b""
            self.written_bytes += len(head)
            self._transport.write(head)

    def close(self) -> None:
        self.flush()
        self._transport.close()


class Connection(HttpToolsProtocol):
    """As uvicorn's, but nobody can hold it for ever."""

    bounds = Bounds()

    _waits_since: float | None = None  # for the rest of a request
    _head_is_open = True
    _head_bytes = 0
    _body_bytes = 0
    _taken_bytes = 0  # by the client, when we began to count
    _taking_since: float | None = None
    _is_half_closed = False
    _probes_left = 8
    _tell_left: Callable[[], object] | None = None  # who wants to hear that the client has left

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has connected."""
        super().connection_made(transport)
        self.transport = self._outlet = _Outlet(transport)  # type: ignore[assignment]
        self._waits_since = self.loop.time()
        if len(self.connections) > self.bounds.max_connections:
            refusal = Refusal(503, "too_many_connections", "too many connections are open; try again soon")
            self._answer_and_close(b"503 Service Unavailable", refusal, b"retry-after: 2\r\n")

    def data_received(self, data: bytes) -> None:
        """Some of a request has arrived."""
        self._head_bytes += len(data)
        super().data_received(data)
        if self._head_is_open and self._head_bytes > _HEAD_BYTES_MAX and not self.transport.is_closing():
            refusal = Refusal(400, "bad_request", f"the headers are over {_HEAD_BYTES_MAX:,} bytes; send less")
            self._answer_and_close(b"400 Bad Request", refusal)

    def send_400_response(self, msg: str) -> None:
        """What cannot be read as HTTP."""
        self._answer_and_close(b"400 Bad Request", Refusal(400, "bad_request", "this is not valid HTTP/1.1"))

    def on_message_begin(self) -> None:
        """The first line of a request."""
        super().on_message_begin()
        self.scope[CONNECTION] = self  # type: ignore[literal-required]
        self._head_is_open = True
        self._body_bytes = 0
        self._waits_since = self.loop.time()

    def on_headers_complete(self) -> None:
        """Now the body."""
        super().on_headers_complete()
        self._head_is_open = False
        self._head_bytes = 0

    def on_body(self, body: bytes) -> None:
        """Some of the body."""
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """All of it is here."""
        super().on_message_complete()
        self._waits_since = None

    def on_response_complete(self) -> None:
        """An answer was given; one without a body ends with its head."""
        self._tell_left = None
        self._outlet.flush()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has left, or was let go."""
        super().connection_lost(exc)
        send, self._tell_left = self._tell_left, None
        if send is not None:
            send()

    def abandon(self) -> None:
        """Leave the answer at hand as it is if the client has left, even if the transport is still closing."""
        if self.transport.is_closing():
            self.cycle.disconnected = True
            self.transport.abort()

    def on_hang_up(self, send: Callable[[], object]) -> None:
        """Call `tell` if the client leaves before the answer to the request at hand is complete."""
        if self.transport.is_closing():
            self.loop.call_soon(send)  # not before what it ends has begun
        else:
            self._tell_left = send

    def sweep(self, now: float) -> None:
        """Let go of a client that keeps us waiting."""
        if self._waits_since is not None:
            allowed_seconds = self.bounds.head_seconds + self._body_bytes / _BYTES_PER_SECOND
            if now - self._waits_since > allowed_seconds:
                self.transport.abort()
                return
        if self._is_half_closed:
            self._look_if_reset()
        self._check_reading(now)

    def _check_reading(self, now: float) -> None:
        """A client must take what it asked for: all of it, or at some rate."""
        unsent_bytes = self.transport.get_write_buffer_size()
        taken_bytes = self._outlet.written_bytes - unsent_bytes
        if not unsent_bytes or self._taking_since is None:
            self._taking_since = now if unsent_bytes else None
            self._taken_bytes = taken_bytes
        elif now - self._taking_since > self.bounds.send_seconds:
            if taken_bytes - self._taken_bytes < self.bounds.send_seconds * _BYTES_PER_SECOND:
                wire = self.transport.get_extra_info("socket")
                wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _WITHOUT_WAITING)
                self.transport.abort()
            self._taking_since, self._taken_bytes = now, taken_bytes

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client sends no more: it has left, or only closed its side and waits for the answer.

        Both look alike until something is sent, so an interim answer is: a client that has left resets the connection.
        """
        if self._waits_since is not None or self.transport.is_closing():  # for the rest of a request, or a first one
            return False
        cycle = self.cycle
        if cycle.response_started or cycle.scope["http_version"] != "1.1":
            return False
        cycle.keep_alive = False
        self._is_half_closed = True
        self._outlet.write_at_once(_PROBE)
        for seconds in _PROBED_SECONDS:
            self.loop.call_later(seconds, self._look_if_reset)
        return True

    def _look_if_reset(self) -> None:
        """Nothing is read any more, so nobody else would notice."""
        wire = self.transport.get_extra_info("socket")
        if self.transport.is_closing():
            return
        if wire.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _TCP_CLOSE:
            self.transport.abort()
        elif self._probes_left and not self.cycle.response_started:
            self._probes_left -= 1
            self._outlet.write_at_once(_PROBE)  # a relay in between notices only the second that it cannot pass on

    def _answer_and_close(self, status: bytes, refusal: Refusal, headers: bytes = b"") -> None:
        body = encode_json(refusal.as_json())
        self.transport.write(
            b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n%bconnection: close\r\n\r\n%b"
            % (status, len(body), headers, body)
        )
        self.transport.close()


def bounded_connection(given: Bounds) -> type[Connection]:
    """What uvicorn makes a server's connections from."""

    class BoundedConnection(Connection):
        bounds = given

    return BoundedConnection


def sweep_all(connections: set[Any]) -> None:
    """Look at every connection once."""
    now = asyncio.get_running_loop().time()
    for connection in list(connections):
        if isinstance(connection, Connection):
            connection.sweep(now)
