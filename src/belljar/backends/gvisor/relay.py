"""The host's descriptors that a guest behind another kernel is given: the other half of `inside/gvisor/relay.py`.

Pipes, sockets and files keep their meaning: what the guest writes to its twin of a pipe arrives in the pipe, packets
travel both ways over sockets, with whatever descriptors come along, and a file that can be written to has what the
guest wrote once it is dead. So whatever deals with local guests deals with these, and does not notice.

All that comes is passed on in the order in which it came: a cell's output is in its pipes before its end is told.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import fcntl
import os
import socket
import stat
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from belljar import channel

_BEHIND_BYTES = 1 << 20  # that nobody has read yet: the guest then waits
_DESCRIPTORS = 8
_SOCKETS_MAX = 96  # of one run, whatever its container says
_FILE_BYTES_MAX = 256 << 20
_MESSAGE_BYTES = 256  # what a frame counts for beside its blob
_UNREAD_BYTES_MAX = _FILE_BYTES_MAX + (64 << 20)  # of a container that does not wait when it is told to
_RIGHTS = (socket.SOL_SOCKET, socket.SCM_RIGHTS)

Send = Callable[[dict[str, Any], bytes], None]


class _Frame(NamedTuple):
    """A frame about a line, of which every word was checked."""

    number: int
    is_closed: bool
    sent: list[int | None]  # for each descriptor that came along the number of its line; None: it is not a socket
    blob: bytes


class DescriptorRelay:
    """All lines of one run or session. Close them, however it ends."""

    def __init__(self, run: int, send: Send) -> None:
        self._run = run
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._pipes: dict[int, int] = {}
        self._sockets: dict[int, socket.socket] = {}
        self._files: dict[int, tuple[int, int]] = {}  # descriptor and size
        self._next = 0
        self._inbox: deque[_Frame] = deque()
        self._inbox_bytes = 0
        self._is_paused = False
        self._waiting_for = -1

    def lend(self, descriptors: Sequence[int]) -> tuple[list[dict[str, Any]], bytes]:
        """Describe these to the steward, with the content of files; copies of them are kept as long as need be."""
        kinds, contents = [], []
        for descriptor in descriptors:
            self._next += 1
            facts = os.fstat(descriptor)
            if stat.S_ISREG(facts.st_mode):
                content = os.pread(descriptor, min(facts.st_size, _FILE_BYTES_MAX), 0).rstrip(b"\0")
                returns = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR
                if returns:
                    self._files[self._next] = os.dup(descriptor), facts.st_size
                kinds.append({"kind": "file", "bytes": len(content), "size": facts.st_size, "returns": returns})
                contents.append(content)
            elif stat.S_ISSOCK(facts.st_mode):
                self.speak(self._next, socket.socket(fileno=os.dup(descriptor)))
                kinds.append({"kind": "socket"})
            else:
                self._pipes[self._next] = os.dup(descriptor)
                os.set_blocking(self._pipes[self._next], False)
                kinds.append({"kind": "pipe"})
            kinds[-1]["line"] = self._next
        return kinds, b"".join(contents)

    def speak(self, number: int, peer: socket.socket) -> None:
        """Pass packets on, both ways, over a socket that is ours from now on."""
        self._drop(number)
        self._sockets[number] = peer
        self._loop.add_reader(peer, self._on_packet, number)

    def _on_packet(self, number: int) -> None:
        peer = self._sockets[number]
        space = socket.CMSG_SPACE(_DESCRIPTORS * 4)
        try:
            packet, ancillary, _, _ = peer.recvmsg(
                channel.PACKET_BYTES_MAX, space, socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return
        except OSError:
            packet, ancillary = b"", []
        descriptors = channel.descriptors_in(ancillary)
        try:
            if not packet:
                self._drop(number)
                self._send({"do": "hang up", "run": self._run, "line": number}, b"")
                return
            kinds, contents = self.lend(descriptors)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        order = {"do": "send", "run": self._run, "line": number, "bytes": len(packet), "kinds": kinds}
        self._send(order, packet + contents)

    # ---- what comes from there

    def receive(self, message: dict[str, Any], blob: bytes) -> None:
        """One frame about a line.

        Raises:
            ValueError: the container does not keep to the rules; nothing of the frame was taken.
        """
        self._inbox.append(_read(message, blob))
        self._inbox_bytes += len(blob) + _MESSAGE_BYTES
        if self._inbox_bytes > _UNREAD_BYTES_MAX:
            raise ValueError("the container sends more than is read, though it was told to wait")
        self._pump()

    def _pump(self) -> None:
        self._stop_waiting()
        while self._inbox:
            frame = self._inbox[0]
            try:
                left = self._deliver(frame)
            except BlockingIOError:
                left = frame.blob
            if left is not None:
                self._inbox_bytes -= len(frame.blob) - len(left)
                self._inbox[0] = frame._replace(blob=left)
                self._wait_for(frame.number)
                break
            self._inbox_bytes -= len(frame.blob) + _MESSAGE_BYTES
            self._inbox.popleft()
        if self._is_paused != (self._inbox_bytes > _BEHIND_BYTES):
            self._is_paused = not self._is_paused
            self._send({"do": "pause", "run": self._run, "is_paused": self._is_paused}, b"")

    def _deliver(self, frame: _Frame) -> bytes | None:
        """What of it could not be passed on yet; None when it is done with, or nothing takes it."""
        number = frame.number
        if frame.is_closed:
            self._drop(number)
        elif number in self._files:
            descriptor, size = self._files[number]
            with contextlib.suppress(OSError):
                os.pwrite(descriptor, frame.blob[:size], 0)
        elif number in self._pipes:
            try:
                written = os.write(self._pipes[number], frame.blob)
            except BrokenPipeError:
                return None
            return frame.blob[written:] or None
        elif number in self._sockets:
            self._pass_on(self._sockets[number], frame)
        return None

    def _pass_on(self, peer: socket.socket, frame: _Frame) -> None:
        theirs: list[int] = []
        made: dict[int, socket.socket] = {}
        try:
            for line in frame.sent:
                if line is not None and line not in made and len(self._sockets) + len(made) < _SOCKETS_MAX:
                    made[line], end = channel.pair()
                    theirs.append(end.detach())
                else:
                    theirs.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
            rights = [(*_RIGHTS, array.array("i", theirs))] if theirs else []
            try:
                peer.sendmsg((frame.blob,), rights, socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
            except BlockingIOError:
                raise
            except OSError:
                return  # it has left, or no packet can be that large
            while made:
                self.speak(*made.popitem())
        finally:
            for ours in made.values():
                ours.close()
            for descriptor in theirs:
                os.close(descriptor)

    def _wait_for(self, number: int) -> None:
        self._waiting_for = self._pipes[number] if number in self._pipes else self._sockets[number].fileno()
        self._loop.add_writer(self._waiting_for, self._pump)

    def _stop_waiting(self) -> None:
        if self._waiting_for >= 0:
            self._loop.remove_writer(self._waiting_for)
            self._waiting_for = -1

    # ---- the end

    def _drop(self, number: int) -> None:
        if number in self._pipes:
            os.close(self._pipes.pop(number))
        elif number in self._sockets:
            peer = self._sockets.pop(number)
            if peer.fileno() == self._waiting_for:
                self._stop_waiting()
                self._loop.call_soon(self._pump)
            self._loop.remove_reader(peer)
            peer.close()

    def close(self) -> None:
        """Let go of everything."""
        self._stop_waiting()
        self._inbox.clear()
        for number in (*self._pipes, *self._sockets):
            self._drop(number)
        for descriptor, _ in self._files.values():
            os.close(descriptor)
        self._files.clear()


def _read(message: dict[str, Any], blob: bytes) -> _Frame:
    """A frame as a container sent it; the lines that it opens itself have numbers below 0."""
    number, sent = message.get("line"), message.get("sent") or []
    if not isinstance(number, int) or not isinstance(sent, list) or len(sent) > _DESCRIPTORS:
        raise ValueError("a frame about a line cannot be read")
    relay: list[int | None] = []
    for each in sent:
        line = each.get("line") if isinstance(each, dict) and each.get("kind") == "socket" else None
        if line is not None and not (isinstance(line, int) and line < 0):
            raise ValueError("a frame names a line that a container cannot open")
        relay.append(line)
    return _Frame(number, bool(message.get("closed")), relay, blob)
