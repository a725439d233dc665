"""Relays the host's pipes, sockets and files into a gVisor container; `inside/gvisor/relay.py` is the other half.

No descriptor can be passed into the container, so the agent creates a twin of each there, and frames carry what is
written to either. Pipes and sockets keep their meaning: bytes that the guest writes to its twin arrive in the host's
pipe, packets travel both ways over sockets, with the descriptors in them, and a file that the guest may write to has
the guest's content once the guest is dead. Code that deals with local guests can therefore deal with these.

Frames are passed on in the order in which they arrive: the output of a cell is in its pipes before its end is known.
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

_BEHIND_BYTES = 1 << 20  # received but not yet passed on: the guest then has to wait
_DESCRIPTORS = 8
_SOCKETS_MAX = 96  # of one guest, whatever its container does
_FILE_BYTES_MAX = 256 << 20
_MESSAGE_BYTES = 256  # what a frame counts for beside its blob
_UNREAD_BYTES_MAX = _FILE_BYTES_MAX + (64 << 20)  # of a container that does not wait as ordered
_READ_BYTES = 65536
_RIGHTS = (socket.SOL_SOCKET, socket.SCM_RIGHTS)

Send = Callable[[dict[str, Any], bytes], None]


class _Frame(NamedTuple):
    """A frame about a relayed descriptor, checked in every field."""

    number: int
    is_closed: bool
    sent: list[int | None]  # for each descriptor in the packet its number; None: it is not a socket
    blob: bytes


class DescriptorRelay:
    """All relayed descriptors of one guest, by number. Close it, however the guest ends."""

    def __init__(self, run: int, send: Send) -> None:
        self._run = run
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._pipes: dict[int, int] = {}  # that the guest writes to
        self._sources: dict[int, int] = {}  # pipes that the guest reads from
        self._sockets: dict[int, socket.socket] = {}
        self._files: dict[int, tuple[int, int]] = {}  # descriptor and size
        self._next = 0
        self._inbox: deque[_Frame] = deque()
        self._inbox_bytes = 0
        self._is_paused = False
        self._waiting_for = -1
        self.passed_on = asyncio.Event()  # no frame waits for room in a pipe or socket
        self.passed_on.set()

    # ---- from the host to the guest

    def describe(self, descriptors: Sequence[int]) -> tuple[list[dict[str, Any]], bytes]:
        """Describe these for the agent, with the contents of files, and relay copies of them from now on."""
        kinds, contents = [], []
        for descriptor in descriptors:
            self._next += 1
            facts = os.fstat(descriptor)
            is_read_only = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
            if stat.S_ISREG(facts.st_mode):
                content = os.pread(descriptor, min(facts.st_size, _FILE_BYTES_MAX), 0).rstrip(b"\0")
                returns = not is_read_only and not _is_sealed(descriptor)
                if returns:
                    self._files[self._next] = os.dup(descriptor), facts.st_size
                kinds.append({"kind": "file", "bytes": len(content), "size": facts.st_size, "returns": returns})
                contents.append(content)
            elif stat.S_ISSOCK(facts.st_mode):
                self._add_socket(self._next, socket.socket(fileno=os.dup(descriptor)))
                kinds.append({"kind": "socket"})
            else:
                copy = os.dup(descriptor)
                os.set_blocking(copy, False)
                if is_read_only:
                    self._sources[self._next] = copy
                    self._loop.add_reader(copy, self._on_source, self._next)
                else:
                    self._pipes[self._next] = copy
                kinds.append({"kind": "source" if is_read_only else "pipe"})
            kinds[-1]["descriptor"] = self._next
        return kinds, b"".join(contents)

    def send(self, number: int, packet: bytes, descriptors: Sequence[int] = ()) -> None:
        """Have the agent send a packet over the twin of a socket, with twins of these descriptors."""
        kinds, contents = self.describe(descriptors)
        order = {"do": "send", "run": self._run, "descriptor": number, "bytes": len(packet), "kinds": kinds}
        self._send(order, packet + contents)

    def _add_socket(self, number: int, peer: socket.socket) -> None:
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
            if packet:
                self.send(number, packet, descriptors)
            else:
                self._close_twin(number)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _on_source(self, number: int) -> None:
        try:
            chunk = os.read(self._sources[number], _READ_BYTES)
        except BlockingIOError:
            return
        if chunk:
            self.send(number, chunk)
        else:
            self._close_twin(number)

    def _close_twin(self, number: int) -> None:
        self._drop(number)
        self._send({"do": "close", "run": self._run, "descriptor": number}, b"")

    # ---- from the guest to the host

    def receive(self, message: dict[str, Any], blob: bytes) -> None:
        """Take one frame about a relayed descriptor.

        Raises:
            ValueError: the container breaks the protocol; nothing of the frame was taken.
        """
        self._inbox.append(_check_frame(message, blob))
        self._inbox_bytes += len(blob) + _MESSAGE_BYTES
        if self._inbox_bytes > _UNREAD_BYTES_MAX:
            raise ValueError("the container sends more than is read, though it was ordered to wait")
        self.pass_on()

    def pass_on(self) -> bool:
        """Pass on as many frames as pipes and sockets have room for; return whether there was room for any."""
        self._stop_waiting()
        before = self._inbox_bytes
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
        if self._inbox:
            self.passed_on.clear()
        else:
            self.passed_on.set()
        if self._is_paused != (self._inbox_bytes > _BEHIND_BYTES):
            self._is_paused = not self._is_paused
            self._send({"do": "pause", "run": self._run, "is_paused": self._is_paused}, b"")
        return self._inbox_bytes < before

    def finish(self) -> None:
        """Nothing is read from the pipes any more: drop what is left for them, and update the files."""
        for frame in self._inbox:
            if frame.number in self._files:
                self._deliver(frame)
        self._inbox.clear()

    def _deliver(self, frame: _Frame) -> bytes | None:
        """Return the part of a frame that found no room; None if the frame is done with, or nothing takes it."""
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
            self._send_to_host(self._sockets[number], frame)
        return None

    def _send_to_host(self, peer: socket.socket, frame: _Frame) -> None:
        theirs: list[int] = []
        created: dict[int, socket.socket] = {}
        try:
            for number in frame.sent:
                if number is not None and number not in created and len(self._sockets) + len(created) < _SOCKETS_MAX:
                    created[number], end = channel.pair()
                    theirs.append(end.detach())
                else:
                    theirs.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
            rights = [(*_RIGHTS, array.array("i", theirs))] if theirs else []
            try:
                peer.sendmsg((frame.blob,), rights, socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
            except BlockingIOError:
                raise
            except OSError:
                return  # the peer has left, or no packet can be that large
            while created:
                self._add_socket(*created.popitem())
        finally:
            for ours in created.values():
                ours.close()
            for descriptor in theirs:
                os.close(descriptor)

    def _wait_for(self, number: int) -> None:
        self._waiting_for = self._pipes[number] if number in self._pipes else self._sockets[number].fileno()
        self._loop.add_writer(self._waiting_for, self.pass_on)

    def _stop_waiting(self) -> None:
        if self._waiting_for >= 0:
            self._loop.remove_writer(self._waiting_for)
            self._waiting_for = -1

    # ---- the end

    def _drop(self, number: int) -> None:
        if number in self._pipes:
            os.close(self._pipes.pop(number))
        elif number in self._sources:
            source = self._sources.pop(number)
            self._loop.remove_reader(source)
            os.close(source)
        elif number in self._sockets:
            peer = self._sockets.pop(number)
            if peer.fileno() == self._waiting_for:
                self._stop_waiting()
                self._loop.call_soon(self.pass_on)
            self._loop.remove_reader(peer)
            peer.close()

    def close(self) -> None:
        """Close every copy, and drop what was not passed on."""
        self._stop_waiting()
        self._inbox.clear()
        for number in (*self._pipes, *self._sources, *self._sockets):
            self._drop(number)
        for descriptor, _ in self._files.values():
            os.close(descriptor)
        self._files.clear()


def _is_sealed(file: int) -> bool:
    """Whether nothing can be written to a file in memory."""
    try:
        return bool(fcntl.fcntl(file, fcntl.F_GET_SEALS) & fcntl.F_SEAL_WRITE)
    except OSError:
        return False  # an ordinary file


def _check_frame(message: dict[str, Any], blob: bytes) -> _Frame:
    """Check a frame from a container; the descriptors that a guest sends have numbers below 0."""
    number, sent = message.get("descriptor"), message.get("sent") or []
    if not isinstance(number, int) or not isinstance(sent, list) or len(sent) > _DESCRIPTORS:
        raise ValueError("a frame about a descriptor cannot be read")
    numbers: list[int | None] = []
    for each in sent:
        own = each.get("descriptor") if isinstance(each, dict) and each.get("kind") == "socket" else None
        if own is not None and not (isinstance(own, int) and own < 0):
            raise ValueError("a frame names a descriptor that a guest cannot have sent")
        numbers.append(own)
    return _Frame(number, bool(message.get("closed")), numbers, blob)
