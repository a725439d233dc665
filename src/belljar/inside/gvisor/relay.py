"""Relays the host's pipes, sockets and files into a gVisor container, where descriptors cannot be passed.

Each has a twin in here. Bytes that a guest writes to its twin of a pipe or a socket go to the host as a frame, and the
host's come as one. The twin of a file has its content, and what the guest has written to it goes back when the guest
is dead. The host numbers the descriptors that it relays upwards, the agent those that a guest sends (sockets, over a
socket) downwards.
"""

from __future__ import annotations

import array
import os
import select
import socket
import stat
from collections import deque
from typing import Any

from belljar import channel
from belljar.inside.gvisor import event_loop
from belljar.jail import policy

_PACKET_BYTES = channel.PACKET_BYTES_MAX
_DESCRIPTORS = 8
_SOCKETS_MAX = 80  # of one guest; more than the host ever answers over
_PIPE_READS = 16  # as much as the largest pipe holds: a program that never stops writing must not keep us here
_RIGHTS = (socket.SOL_SOCKET, socket.SCM_RIGHTS)
_ZERO = b"\0"


class DescriptorRelay:
    """All relayed descriptors of one guest, by number."""

    def __init__(self, run: int) -> None:
        self._run = run
        self._pipes: dict[int, int] = {}  # that the guest writes to
        self._sinks: dict[int, int] = {}  # pipes that the guest reads from
        self._sockets: dict[int, socket.socket] = {}
        self._files: dict[int, int] = {}
        self._unsent: dict[int, deque[tuple[bytes, list[int]]]] = {}
        self._is_paused = False
        self._next_own = 0
        self.is_held = False  # the host has enough to read for now
        self.kept: list[int] = []  # descriptors sent by the guest that are not sockets: its directories

    def open(self, kinds: list[dict[str, Any]], contents: bytes) -> list[int]:
        """Create twins of what the host describes, for a guest; the caller closes them once they are sent."""
        theirs, start = [], 0
        for each in kinds:
            number = each["descriptor"]
            if each["kind"] == "file":
                memfd = os.memfd_create("belljar", os.MFD_CLOEXEC)
                with open(memfd, "wb", closefd=False) as file:
                    file.write(contents[start : start + each["bytes"]])
                os.ftruncate(memfd, each["size"])
                os.lseek(memfd, 0, os.SEEK_SET)
                start += each["bytes"]
                if each["returns"]:
                    self._files[number] = os.dup(memfd)
                theirs.append(memfd)
            elif each["kind"] == "pipe":
                ours, end = os.pipe2(os.O_CLOEXEC)
                open_to_all(end)
                self.add_pipe(number, ours)
                theirs.append(end)
            elif each["kind"] == "source":
                end, self._sinks[number] = os.pipe2(os.O_CLOEXEC)
                open_to_all(end)
                os.set_blocking(self._sinks[number], False)
                theirs.append(end)
            else:
                peer, end_of_socket = channel.pair()
                self.add_socket(number, peer)
                theirs.append(end_of_socket.detach())
        return theirs

    def add_pipe(self, number: int, pipe: int) -> None:
        """Relay what comes out of a pipe, which is ours from now on."""
        os.set_blocking(pipe, False)
        self._pipes[number] = pipe
        self._watch(number)

    def add_socket(self, number: int, peer: socket.socket) -> None:
        """Relay packets, both ways, over a socket that is ours from now on."""
        peer.setblocking(False)
        self._sockets[number] = peer
        self._watch(number)

    def _watch(self, number: int) -> None:
        if self._is_paused or number in self._unsent:
            return
        if number in self._pipes:
            event_loop.watch(self._pipes[number], lambda: self._read_pipe(number))
        else:
            event_loop.watch(self._sockets[number].fileno(), lambda: self._read_socket(number))

    def update_pause(self) -> None:
        """Read from the guest only while the host keeps up with what was read."""
        if self._is_paused != (self.is_held or event_loop.is_behind()):
            self._is_paused = not self._is_paused
            for number in (*self._pipes, *self._sockets):
                if not self._is_paused:
                    self._watch(number)
                elif number in self._pipes:
                    event_loop.unwatch(self._pipes[number])
                elif number not in self._unsent:  # else it is watched for room
                    event_loop.unwatch(self._sockets[number].fileno())

    # ---- from the guest

    def _read_pipe(self, number: int) -> bool:
        try:
            chunk = os.read(self._pipes[number], event_loop.READ_BYTES)
        except BlockingIOError:
            return False
        if chunk:
            event_loop.send({"run": self._run, "descriptor": number}, chunk)
            return True
        self._drop(number)
        return False

    def _read_socket(self, number: int) -> bool:
        peer = self._sockets[number]
        space = socket.CMSG_SPACE(_DESCRIPTORS * 4)
        try:
            packet, ancillary, _, _ = peer.recvmsg(_PACKET_BYTES, space, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return False
        except OSError:
            packet, ancillary = b"", []
        sent = channel.descriptors_in(ancillary)
        if not packet and not sent:
            self._drop(number)
            return False
        for pipe in list(self._pipes):  # what was written before this packet goes before it
            for _ in range(_PIPE_READS):
                if pipe not in self._pipes or not self._read_pipe(pipe):
                    break
        message = {"run": self._run, "descriptor": number, "sent": [self._take(each) for each in sent]}
        event_loop.send(message, packet)
        return True

    def _take(self, descriptor: int) -> dict[str, Any]:
        """Of what a guest sends, sockets are relayed, its directories are kept, and anything else is dropped."""
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode) or len(self._sockets) >= _SOCKETS_MAX:
            if len(self.kept) < len(policy.WRITABLE_DIRS):
                self.kept.append(descriptor)
            else:
                os.close(descriptor)
            return {"kind": "other"}
        self._next_own -= 1
        self.add_socket(self._next_own, socket.socket(fileno=descriptor))
        return {"kind": "socket", "descriptor": self._next_own}

    def _drop(self, number: int) -> None:
        self._close(number)
        event_loop.send({"run": self._run, "descriptor": number, "closed": True})

    def drain(self) -> None:
        """The guest is dead: relay everything that it has left."""
        for number in list(self._sockets):
            while number in self._sockets and self._read_socket(number):
                pass
        for number in list(self._pipes):
            while number in self._pipes and self._read_pipe(number):
                pass
        for number, memfd in self._files.items():
            with open(memfd, "rb", closefd=False) as file:
                file.seek(0)
                event_loop.send({"run": self._run, "descriptor": number}, file.read().rstrip(_ZERO))

    # ---- from the host

    def send(self, number: int, packet: bytes, kinds: list[dict[str, Any]], contents: bytes) -> None:
        """Pass on a packet, with twins of the descriptors in it, or bytes for a pipe."""
        theirs = self.open(kinds, contents)
        if number in self._sockets or number in self._sinks:
            self._unsent.setdefault(number, deque()).append((packet, theirs))
            self._flush(number)
        else:
            close_all(theirs)

    def finish(self, number: int) -> None:
        """The host has closed its descriptor. What it has sent to a pipe is passed on first."""
        if number in self._sinks and number in self._unsent:
            self._unsent[number].append((b"", []))
        else:
            self._close(number)

    def _flush(self, number: int) -> None:
        waiting = self._unsent[number]
        descriptor = self._sinks[number] if number in self._sinks else self._sockets[number].fileno()
        try:
            while waiting:
                packet, theirs = waiting[0]
                if number in self._sockets:
                    rights = [(*_RIGHTS, array.array("i", theirs))] if theirs else ()
                    self._sockets[number].sendmsg((packet,), rights, socket.MSG_NOSIGNAL)
                elif not packet:
                    self._close(number)
                    return
                elif len(packet) > (written := os.write(descriptor, packet)):
                    waiting[0] = packet[written:], theirs
                    continue
                close_all(theirs)
                waiting.popleft()
        except BlockingIOError:
            event_loop.unwatch(descriptor)
            event_loop.watch(descriptor, lambda: self._flush(number), select.POLLOUT)
            return
        except OSError:
            self._drop(number)
            return
        del self._unsent[number]
        event_loop.unwatch(descriptor)
        if number in self._sockets:
            self._watch(number)

    def _close(self, number: int) -> None:
        for _, theirs in self._unsent.pop(number, ()):
            close_all(theirs)
        if number in self._sockets:
            peer = self._sockets.pop(number)
            event_loop.unwatch(peer.fileno())
            peer.close()
        else:
            pipe = self._pipes.pop(number, -1) if number in self._pipes else self._sinks.pop(number, -1)
            if pipe >= 0:
                event_loop.unwatch(pipe)
                os.close(pipe)

    def close(self) -> None:
        """Close every descriptor."""
        for number in (*self._pipes, *self._sinks, *self._sockets):
            self._close(number)
        close_all([*self._files.values(), *self.kept])
        self._files.clear()
        self.kept.clear()


def close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def open_to_all(pipe: int) -> None:
    """Let a program open /dev/stdout; where pipes have no mode it cannot."""
    try:
        os.fchmod(pipe, 0o666)
    except OSError:
        pass
