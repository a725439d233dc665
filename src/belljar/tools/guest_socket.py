"""The host's end of a program's tool socket.

A program may write anything here, from any of its processes. A malformed call closes its connection; well-formed calls
are counted, slowed down and refused within the limits of the settings. Every read and write passes MSG_DONTWAIT
itself, because the two ends of a socket that the program made share their flags.

Back-pressure: calls past `in_flight` are not read, and answers wait for the program to read them. An answer counts as
in flight until it is sent, so a program that never reads soon gets no more answers.
"""

from __future__ import annotations

import array
import asyncio
import os
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from belljar.contract.backend import Watcher
from belljar.contract.errors import ToolFailed
from belljar.contract.execution import ToolAnswered, ToolCall, ToolCalled
from belljar.contract.tools import ToolHost
from belljar.settings import ToolSettings

_HEAD = struct.Struct(">IB")  # as in inside/guest/tools.py: number of the call, flag
_LAST, _MORE, _CONNECT = 0, 1, 2
_PIECE_BYTES = 60 * 1024
_PACKET_BYTES_MAX = 120 * 1024
_PACKETS_AT_ONCE = 32  # then the loop serves others
_CONNECTIONS_MAX = 64
_DESCRIPTOR_BYTES = array.array("i").itemsize
_NOW = socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class Bridge:
    """Answers the calls of one execution, or of a session's cells in turn. Must be closed."""

    def __init__(self, host: ToolHost, keys: Sequence[str], settings: ToolSettings) -> None:
        self._host = host
        self._settings = settings
        described = [(spec, key) for key in keys for spec in host.describe([key])]
        self._keys = {spec.name: key for spec, key in described}
        #: Sent to `inside/guest/tools.py`.
        self.argument = {
            "tools": [spec.as_json() for spec, _ in described],
            "argument_bytes": settings.argument_bytes,
        }
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[bytes]] = set()
        self._connections: set[_Connection] = set()
        self._watcher: Watcher | None = None
        self._is_on = False
        self.calls: list[ToolCall] = []
        self._running: dict[int, tuple[str, float]] = {}  # tool and beginning, by number
        self.unsent_answers = 0  # of all connections
        self._number = 0
        self._seconds = 0.0
        self._tokens = settings.calls_per_second
        self._counted_at = self._loop.time()
        self._resuming: asyncio.TimerHandle | None = None
        self._catching_up: asyncio.Task[None] | None = None  # waits for a slow watcher

    def open(self) -> int:
        """Return the guest's end of a new connection; the caller closes it once it has been sent."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._connections.add(_Connection(self, ours, may_connect=True))
        return theirs.detach()

    def begin(self, watcher: Watcher | None) -> None:
        """Reset the counts: a program, or the next cell, starts."""
        self._watcher, self._is_on = watcher, True
        self.calls, self._running, self._number, self._seconds = [], {}, 0, 0.0

    def end(self) -> tuple[ToolCall, ...]:
        """Cancel the calls in progress and return all calls made: the program or cell has ended."""
        self._is_on, self._watcher = False, None
        if self._catching_up is not None:
            self._catching_up.cancel()
        for task in list(self._tasks):
            task.cancel()
        now = self._loop.time()
        cancelled = (ToolCall(tool=name, ok=False, seconds=now - began) for name, began in self._running.values())
        return (*self.calls, *cancelled)

    def close(self) -> None:
        self.end()
        if self._resuming is not None:
            self._resuming.cancel()
        for connection in list(self._connections):
            connection.close()

    # ---- for connections

    @property
    def bytes_max(self) -> int:
        """The largest size of one call."""
        return self._settings.argument_bytes

    def has_room(self) -> bool:
        """Whether another call may be read now; if not, connections are resumed later."""
        if len(self._tasks) + self.unsent_answers >= self._settings.in_flight:
            return False
        if self._watcher is not None and self._watcher.is_behind:
            self._wait_for(self._watcher)
            return False
        now = self._loop.time()
        rate = self._settings.calls_per_second
        self._tokens = min(rate, self._tokens + (now - self._counted_at) * rate)
        self._counted_at = now
        if self._tokens >= 1:
            return True
        if self._resuming is None:
            self._resuming = self._loop.call_later((1 - self._tokens) / rate, self.resume)
        return False

    def _wait_for(self, watcher: Watcher) -> None:
        if self._catching_up is None:
            self._catching_up = self._loop.create_task(watcher.caught_up())
            self._catching_up.add_done_callback(self._caught_up)

    def _caught_up(self, task: asyncio.Task[None]) -> None:
        self._catching_up = None
        self.resume()

    def resume(self) -> None:
        """Let connections read again, if there is room."""
        if self._resuming is not None:
            self._resuming.cancel()
            self._resuming = None
        for connection in list(self._connections):
            connection.listen()

    def adopt(self, descriptor: int) -> None:
        """Take over a socket that a process of the program sent; closes it if it is not usable."""
        self._tokens -= 1
        try:
            peer = socket.socket(fileno=descriptor)
        except OSError:
            os.close(descriptor)
            return
        if (peer.family, peer.type) != (socket.AF_UNIX, socket.SOCK_SEQPACKET) or (
            len(self._connections) >= _CONNECTIONS_MAX
        ):
            peer.close()
            return
        self._connections.add(_Connection(self, peer, may_connect=False))

    def forget(self, connection: _Connection) -> None:
        self._connections.discard(connection)

    def take(self, question: bytes, answer: Callable[[bytes], None]) -> bool:
        """Start one complete call; return False if it is malformed.

        A malformed call is never answered: a program may have sent us the other end of our own socket, and Belljar
        would answer itself for ever.
        """
        self._tokens -= 1
        try:
            call = _decode(question)
            name, arguments = call["tool"], call["arguments"]
            if not isinstance(name, str) or not isinstance(arguments, dict):
                raise TypeError
        except (msgspec.DecodeError, UnicodeError, RecursionError, KeyError, TypeError, ValueError):
            return False
        refusal = self._refuse(name)
        if refusal is not None:
            answer(_error(refusal))
            return True
        self._number += 1
        task = self._loop.create_task(self._call(self._number, name, arguments, len(question)))
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._done(name, done, answer))
        return True

    def _refuse(self, name: str) -> str | None:
        if not self._is_on:
            return "tools can be called only while a program or cell runs"
        if name not in self._keys:
            known = ", ".join(self._keys) or "none"
            return f"{name[:80]!r} is not a tool of this program; choose from: {known}"
        if self._number >= self._settings.calls_max:
            return f"{name}: this program has made all the {self._settings.calls_max} calls it may make"
        if self._seconds >= self._settings.total_seconds:
            return f"{name}: this program has used up the {self._settings.total_seconds:g} s that its calls may take"
        return None

    async def _call(self, number: int, name: str, arguments: dict[str, Any], size_bytes: int) -> bytes:
        """Run one tool and return the encoded answer."""
        watcher, calls = self._watcher, self.calls
        if watcher is not None:
            watcher.called(ToolCalled(number=number, tool=name, arguments=arguments, size_bytes=size_bytes))
        began = self._loop.time()
        running = self._running
        running[number] = name, began
        ok, result = False, None
        try:
            result = await asyncio.wait_for(
                self._host.call(self._keys[name], arguments), self._settings.total_seconds - self._seconds
            )
            packet = self._pack(name, result)
            ok = True
        except ToolFailed as error:
            result = error.message
            packet = _error(error.message)
        except TimeoutError:
            result = f"{name}: this program has used up the {self._settings.total_seconds:g} s that its calls may take"
            packet = _error(result)
        seconds = self._loop.time() - began
        del running[number]
        if calls is self.calls:
            self._seconds += seconds
        call = ToolCall(tool=name, ok=ok, seconds=seconds)
        calls.append(call)
        if watcher is not None:
            watcher.answered(ToolAnswered(number=number, call=call, result=result, size_bytes=len(packet)))
        return packet

    def _pack(self, name: str, result: Any) -> bytes:
        try:
            packet = _encode({"result": result})
        except (TypeError, ValueError, OverflowError, RecursionError, MemoryError) as error:
            raise ToolFailed(f"{name}: its answer cannot be encoded as JSON: {error}") from None
        if len(packet) > self._settings.result_bytes:
            raise ToolFailed(
                f"{name}: its answer has {len(packet):,} bytes, over the {self._settings.result_bytes:,} allowed"
            )
        return packet

    def _done(self, name: str, task: asyncio.Task[bytes], answer: Callable[[bytes], None]) -> None:
        """Answer, however the call went: without an answer the program would wait for ever."""
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._loop.call_exception_handler({"message": "a tool call broke", "exception": error})
            answer(_error(f"{name}: the host could not answer; its log says why"))
        elif task.cancelled():
            answer(_error(f"{name}: the call was cancelled, since the program or cell that made it has ended"))
        else:
            answer(task.result())
        self.resume()


class _Connection:
    """A socket to one process of the program."""

    def __init__(self, bridge: Bridge, peer: socket.socket, *, may_connect: bool) -> None:
        self._bridge = bridge
        self._peer = peer
        self._space = socket.CMSG_SPACE(_DESCRIPTOR_BYTES) if may_connect else 0
        self._loop = asyncio.get_running_loop()
        self._parts: dict[int, bytearray] = {}  # incomplete calls
        self._unsent: deque[tuple[bytes, bool]] = deque()  # packets, and whether each is the end of an answer
        self._listens = self._writes = False
        self._is_closed = False
        self.listen()

    def listen(self) -> None:
        """Read from the program again, if there is room."""
        if not self._listens and not self._is_closed and self._bridge.has_room():
            self._listens = True
            self._loop.add_reader(self._peer.fileno(), self._on_readable)

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._pause()
        if self._writes:
            self._loop.remove_writer(self._peer.fileno())
        self._peer.close()
        self._bridge.unsent_answers -= sum(is_last for _, is_last in self._unsent)
        self._unsent.clear()
        self._bridge.forget(self)

    def _pause(self) -> None:
        if self._listens:
            self._listens = False
            self._loop.remove_reader(self._peer.fileno())

    def _on_readable(self) -> None:
        for _ in range(_PACKETS_AT_ONCE):
            if self._is_closed:
                return
            if not self._bridge.has_room():
                self._pause()
                return
            try:
                packet, ancillary, flags, _ = self._peer.recvmsg(_PACKET_BYTES_MAX, self._space, _NOW)
            except BlockingIOError:
                return
            except OSError:
                self.close()
                return
            descriptors = _descriptors(ancillary)
            if len(packet) < _HEAD.size or flags & socket.MSG_TRUNC or not self._take(packet, descriptors):
                self.close()
            for descriptor in descriptors:
                os.close(descriptor)

    def _take(self, packet: bytes, descriptors: list[int]) -> bool:
        """Process one packet; return whether it was well-formed."""
        number, flag = _HEAD.unpack_from(packet)
        if flag == _CONNECT:
            if len(descriptors) != 1:
                return False
            self._bridge.adopt(descriptors.pop())
            return True
        if flag not in (_LAST, _MORE) or descriptors:
            return False
        piece = packet[_HEAD.size :]
        whole = self._parts.pop(number, None)
        if whole is None:
            whole = bytearray()
        whole += piece
        if len(whole) > self._bridge.bytes_max:
            return False  # the guest's module refuses to send so much
        if flag == _MORE:
            self._parts[number] = whole
            return len(self._parts) == 1 and len(piece) == _PIECE_BYTES  # one call at a time, in full packets
        return self._bridge.take(bytes(whole), lambda answer: self._send(number, answer))

    def _send(self, number: int, answer: bytes) -> None:
        if self._is_closed:
            return
        for start in range(0, len(answer), _PIECE_BYTES):
            flag = _MORE if start + _PIECE_BYTES < len(answer) else _LAST
            self._unsent.append((_HEAD.pack(number, flag) + answer[start : start + _PIECE_BYTES], flag == _LAST))
        self._bridge.unsent_answers += 1
        if not self._writes:
            self._on_writable()

    def _on_writable(self) -> None:
        try:
            while self._unsent:
                packet, is_last = self._unsent[0]
                self._peer.send(packet, _NOW | socket.MSG_NOSIGNAL)
                self._unsent.popleft()
                self._bridge.unsent_answers -= is_last
        except BlockingIOError:
            if not self._writes:
                self._writes = True
                self._loop.add_writer(self._peer.fileno(), self._on_writable)
            return
        except OSError:
            self.close()
            return
        if self._writes:
            self._writes = False
            self._loop.remove_writer(self._peer.fileno())
            self._bridge.resume()


def _error(message: str) -> bytes:
    return _encode({"error": message})


def _descriptors(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    found = array.array("i")
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found.frombytes(content[: len(content) - len(content) % _DESCRIPTOR_BYTES])
    return list(found)
