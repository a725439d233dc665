"""One HTTP connection, with bounds that uvicorn leaves to a proxy in front.

It writes each answer at once, not in two writes: uvloop sends data immediately, so the head would travel alone, and
wake both client and server once more for nothing.

A route can be notified when its client leaves, without a task of its own.

Clients that are too slow are disconnected: in sending a request (its headers within a time, its body at some rate), and
in reading the answer. No request has a timer: each connection records when it began to wait, and one sweep checks all
of them.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from belljar.frontends.access.refusals import Refusal
from belljar.frontends.api.request import CONNECTION
from belljar.frontends.api.responses import encode_json

_HEAD_BYTES_MAX = 64 * 1024
_JOINED_BYTES_MAX = 64 * 1024  # copying more costs more than a second write
_BYTES_PER_SECOND = 16 * 1024  # slower clients, in sending or reading, are disconnected
_PROBE = b"HTTP/1.1 100 Continue\r\n\r\n"
_PROBED_SECONDS = (0.02, 0.1, 0.4)  # after a probe; then with every sweep
_REST_SECONDS = 1.0  # for the rest of an answer that had begun when the client closed its side
_WITHOUT_WAITING = struct.pack("ii", 1, 0)  # reset: the kernel drops unread data, too
_TCP_CLOSE = 7  # the state of a connection that was reset


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Limits for the connections of one server."""

    max_connections: int = 8192
    head_seconds: float = 20.0
    send_seconds: float = 60.0


class _Outlet:
    """A transport that keeps an answer's head until its body follows. Has only the methods that are used here."""

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
    """Uvicorn's connection, bounded in time and size."""

    bounds = Bounds()

    _waits_since: float | None = None  # since when the rest of a request is awaited
    _head_is_open = True
    _head_bytes = 0
    _body_bytes = 0
    _taken_bytes = 0  # that the client had read at `_taking_since`
    _taking_since: float | None = None
    _is_half_closed = False
    _probes_left = 8
    _on_hang_up: Callable[[], object] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.transport = self._outlet = _Outlet(transport)  # type: ignore[assignment]
        self._waits_since = self.loop.time()
        if len(self.connections) > self.bounds.max_connections:
            refusal = Refusal(503, "too_many_connections", "too many connections are open; try again soon")
            self._answer_and_close(b"503 Service Unavailable", refusal, b"retry-after: 2\r\n")

    def data_received(self, data: bytes) -> None:
        """Bytes of a request have arrived."""
        self._head_bytes += len(data)
        super().data_received(data)
        if self._head_is_open and self._head_bytes > _HEAD_BYTES_MAX and not self.transport.is_closing():
            refusal = Refusal(400, "bad_request", f"the headers are over {_HEAD_BYTES_MAX:,} bytes; send less")
            self._answer_and_close(b"400 Bad Request", refusal)

    def send_400_response(self, msg: str) -> None:
        """Answer a request that is not valid HTTP."""
        self._answer_and_close(b"400 Bad Request", Refusal(400, "bad_request", "this is not valid HTTP/1.1"))

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self.scope[CONNECTION] = self  # type: ignore[literal-required]
        self._head_is_open = True
        self._body_bytes = 0
        self._waits_since = self.loop.time()

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self._head_is_open = False
        self._head_bytes = 0

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._waits_since = None

    def on_response_complete(self) -> None:
        """An answer is complete; one without a body ends with its head."""
        self._on_hang_up = None
        self._outlet.flush()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has left, or was disconnected."""
        super().connection_lost(exc)
        notify, self._on_hang_up = self._on_hang_up, None
        if notify is not None:
            notify()

    def abandon(self) -> None:
        """Give up the current answer if the client has left, even if the transport is still closing."""
        if self.transport.is_closing():
            self.cycle.disconnected = True
            self.transport.abort()

    def on_hang_up(self, notify: Callable[[], object]) -> None:
        """Call `notify` if the client leaves before the answer to the current request is complete."""
        if self.transport.is_closing():
            self.loop.call_soon(notify)  # not before the work that it cancels has begun
        else:
            self._on_hang_up = notify

    def sweep(self, now: float) -> None:
        """Disconnect a client that keeps the server waiting."""
        if self._waits_since is not None:
            allowed_seconds = self.bounds.head_seconds + self._body_bytes / _BYTES_PER_SECOND
            if now - self._waits_since > allowed_seconds:
                self.transport.abort()
                return
        if self._is_half_closed:
            self._look_if_reset()
        self._check_reading(now)

    def _check_reading(self, now: float) -> None:
        """Disconnect a client that neither reads the whole answer nor reads it at some rate."""
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
        """The client sends nothing more: it has left, or has only closed its side and waits for the answer.

        Both look alike until the server sends something, so it sends an interim answer: a client that has left resets
        the connection. Within an answer there are no interim answers, so the rest of it gets only a short time.
        """
        if self._waits_since is not None or self.transport.is_closing():  # for a request or the rest of one
            return False
        cycle = self.cycle
        if cycle.response_complete or cycle.scope["http_version"] != "1.1":
            return False
        cycle.keep_alive = False
        self._is_half_closed = True
        if cycle.response_started:
            self.loop.call_later(_REST_SECONDS, self.transport.close)
        else:
            self._outlet.write_at_once(_PROBE)
        for seconds in _PROBED_SECONDS:
            self.loop.call_later(seconds, self._look_if_reset)
        return True

    def _look_if_reset(self) -> None:
        """Check for a reset: the loop does not read from this connection any more, so it would not notice."""
        wire = self.transport.get_extra_info("socket")
        if self.transport.is_closing():
            return
        if wire.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _TCP_CLOSE:
            self.transport.abort()
        elif self._probes_left and not self.cycle.response_started:
            self._probes_left -= 1
            self._outlet.write_at_once(_PROBE)  # a relay in between notices only at the second probe

    def _answer_and_close(self, status: bytes, refusal: Refusal, headers: bytes = b"") -> None:
        body = encode_json(refusal.as_json())
        self.transport.write(
            b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n%bconnection: close\r\n\r\n%b"
            % (status, len(body), headers, body)
        )
        self.transport.close()


def bounded_connection(given: Bounds) -> type[Connection]:
    """The class from which uvicorn creates a server's connections."""

    class BoundedConnection(Connection):
        bounds = given

    return BoundedConnection


def sweep_all(connections: set[Any]) -> None:
    """Check every connection once."""
    now = asyncio.get_running_loop().time()
    for connection in list(connections):
        if isinstance(connection, Connection):
            connection.sweep(now)
