"""The host's descriptors that a guest behind another kernel is given: the other half of `zygote/lines.py`.

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
from typing import Any

from belljar import channel

_BEHIND_BYTES = 1 << 20  # that nobody has read yet: the guest then waits
_DESCRIPTORS = 8
_SOCKETS_MAX = 96  # of one run, whatever its container says
_FILE_BYTES_MAX = 256 << 20
_RIGHTS = (socket.SOL_SOCKET, socket.SCM_RIGHTS)

Send = Callable[[dict[str, Any], bytes], None]


class Lines:
    """All lines of one run or session. Close them, however it ends."""

    def __init__(self, run: int, send: Send) -> None:
        self._run = run
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._pipes: dict[int, int] = {}
        self._sockets: dict[int, socket.socket] = {}
        self._files: dict[int, tuple[int, int]] = {}  # descriptor and size
        self._next = 0
        self._inbox: deque[tuple[dict[str, Any], bytes]] = deque()
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

    def hear(self, message: dict[str, Any], blob: bytes) -> None:
        """One frame about a line."""
        self._inbox.append((message, blob))
        self._inbox_bytes += len(blob)
        self._pump()

    def _pump(self) -> None:
        self._stop_waiting()
        while self._inbox:
            message, blob = self._inbox[0]
            number = int(message["line"])
            try:
                left = self._deliver(number, message, blob)
            except BlockingIOError:
                left = blob
            if left is not None:
                self._inbox_bytes -= len(blob) - len(left)
                self._inbox[0] = message, left
                self._wait_for(number)
                break
            self._inbox_bytes -= len(blob)
            self._inbox.popleft()
        if self._is_paused != (self._inbox_bytes > _BEHIND_BYTES):
            self._is_paused = not self._is_paused
            self._send({"do": "pause", "run": self._run, "is_paused": self._is_paused}, b"")

    def _deliver(self, number: int, message: dict[str, Any], blob: bytes) -> bytes | None:
        """What of it could not be passed on yet; None when it is done with, or nobody wants it."""
        if message.get("closed"):
            self._drop(number)
        elif number in self._files:
            descriptor, size = self._files[number]
            with contextlib.suppress(OSError):
                os.pwrite(descriptor, blob[:size], 0)
        elif number in self._pipes:
            try:
                written = os.write(self._pipes[number], blob)
            except BrokenPipeError:
                return None
            return blob[written:] or None
        elif number in self._sockets:
            self._pass_on(self._sockets[number], message.get("sent") or [], blob)
        return None

    def _pass_on(self, peer: socket.socket, sent: list[dict[str, Any]], packet: bytes) -> None:
        theirs: list[int] = []
        made: dict[int, socket.socket] = {}
        try:
            for each in sent[:_DESCRIPTORS]:
                if each.get("kind") == "socket" and len(self._sockets) + len(made) < _SOCKETS_MAX:
                    made[int(each["line"])], end = channel.pair()
                    theirs.append(end.detach())
                else:
                    theirs.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
            rights = [(*_RIGHTS, array.array("i", theirs))] if theirs else []
            with contextlib.suppress(BrokenPipeError, ConnectionError):
                peer.sendmsg((packet,), rights, socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
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
