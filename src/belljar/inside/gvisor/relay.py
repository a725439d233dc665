"""Descriptors of the host's that a guest behind another kernel gets all the same: each has a twin in here.

What a guest writes into its twin of a pipe or a socket goes to the host as a frame, and what the host's side of a
socket says comes as one. A twin of a file has its content, and what the guest has written goes back when it is dead.
The host numbers the lines that it opens upwards, the steward those that a guest opens (by sending a socket over a
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
_SOCKETS_MAX = 80  # of one run; more than anybody is answered over
_RIGHTS = (socket.SOL_SOCKET, socket.SCM_RIGHTS)
_ZERO = b"\0"


class DescriptorRelay:
    """All lines of one run or session."""

    def __init__(self, run: int) -> None:
        self._run = run
        self._pipes: dict[int, int] = {}
        self._sockets: dict[int, socket.socket] = {}
        self._files: dict[int, int] = {}
        self._unsent: dict[int, deque[tuple[bytes, list[int]]]] = {}
        self._is_paused = False
        self._next_own = 0
        self.kept: list[int] = []  # descriptors a guest has sent that are no line: its directories

    def open(self, kinds: list[dict[str, Any]], contents: bytes) -> list[int]:
        """Twins of what the host describes, for a guest; the caller closes them once they are sent."""
        theirs, start = [], 0
        for each in kinds:
            number = each["line"]
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
                self.listen(number, ours)
                theirs.append(end)
            else:
                peer, end_of_socket = channel.pair()
                self.speak(number, peer)
                theirs.append(end_of_socket.detach())
        return theirs

    def listen(self, number: int, pipe: int) -> None:
        """Pass on what comes out of a pipe, which is ours from now on."""
        os.set_blocking(pipe, False)
        self._pipes[number] = pipe
        self._watch(number)

    def speak(self, number: int, peer: socket.socket) -> None:
        """Pass packets on, both ways, over a socket that is ours from now on."""
        peer.setblocking(False)
        self._sockets[number] = peer
        self._watch(number)

    def _watch(self, number: int) -> None:
        if self._is_paused:
            return
        if number in self._pipes:
            event_loop.watch(self._pipes[number], lambda: self._read_pipe(number))
        else:
            event_loop.watch(self._sockets[number].fileno(), lambda: self._read_socket(number))

    def pause(self, is_paused: bool) -> None:
        """The host has enough for now, or can take more."""
        if is_paused != self._is_paused:
            self._is_paused = is_paused
            for number in (*self._pipes, *self._sockets):
                if is_paused:
                    event_loop.unwatch(self._descriptor(number))
                else:
                    self._watch(number)

    def _descriptor(self, number: int) -> int:
        return self._pipes[number] if number in self._pipes else self._sockets[number].fileno()

    # ---- from the guest

    def _read_pipe(self, number: int) -> bool:
        try:
            chunk = os.read(self._pipes[number], event_loop.READ_BYTES)
        except BlockingIOError:
            return False
        if chunk:
            event_loop.send({"run": self._run, "line": number}, chunk)
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
        for pipe in list(self._pipes):  # what was written before this was said comes before it
            while pipe in self._pipes and self._read_pipe(pipe):
                pass
        event_loop.send({"run": self._run, "line": number, "sent": [self._take(each) for each in sent]}, packet)
        return True

    def _take(self, descriptor: int) -> dict[str, Any]:
        """What a guest has sent: a socket becomes a line, its directories are kept, and anything more is dropped."""
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode) or len(self._sockets) >= _SOCKETS_MAX:
            if len(self.kept) < len(policy.WRITABLE_DIRS):
                self.kept.append(descriptor)
            else:
                os.close(descriptor)
            return {"kind": "other"}
        self._next_own -= 1
        self.speak(self._next_own, socket.socket(fileno=descriptor))
        return {"kind": "socket", "line": self._next_own}

    def _drop(self, number: int) -> None:
        self.hang_up(number)
        event_loop.send({"run": self._run, "line": number, "closed": True})

    def drain(self) -> None:
        """The guest is dead: tell all that it has left in its lines."""
        self.pause(False)
        for number in list(self._sockets):
            while number in self._sockets and self._read_socket(number):
                pass
        for number in list(self._pipes):
            while number in self._pipes and self._read_pipe(number):
                pass
        for number, memfd in self._files.items():
            with open(memfd, "rb", closefd=False) as file:
                file.seek(0)
                event_loop.send({"run": self._run, "line": number}, file.read().rstrip(_ZERO))

    # ---- from the host

    def send(self, number: int, packet: bytes, kinds: list[dict[str, Any]], contents: bytes) -> None:
        """Pass a packet of the host's on, with twins of what came with it."""
        theirs = self.open(kinds, contents)
        if number in self._sockets:
            self._unsent.setdefault(number, deque()).append((packet, theirs))
            self._flush(number)
        else:
            close_all(theirs)

    def _flush(self, number: int) -> None:
        waiting, peer = self._unsent[number], self._sockets[number]
        try:
            while waiting:
                packet, theirs = waiting[0]
                peer.sendmsg((packet,), [(*_RIGHTS, array.array("i", theirs))] if theirs else (), socket.MSG_NOSIGNAL)
                close_all(theirs)
                waiting.popleft()
        except BlockingIOError:
            event_loop.unwatch(peer.fileno())
            event_loop.watch(peer.fileno(), lambda: self._flush(number), select.POLLOUT)
            return
        except OSError:
            self.hang_up(number)
            return
        event_loop.unwatch(peer.fileno())
        self._watch(number)

    def hang_up(self, number: int) -> None:
        """The host has closed its side."""
        for _, theirs in self._unsent.pop(number, ()):
            close_all(theirs)
        if number in self._pipes:
            event_loop.unwatch(self._pipes[number])
            os.close(self._pipes.pop(number))
        elif number in self._sockets:
            peer = self._sockets.pop(number)
            event_loop.unwatch(peer.fileno())
            peer.close()

    def close(self) -> None:
        """Let go of everything."""
        for number in (*self._pipes, *self._sockets):
            self.hang_up(number)
        close_all([*self._files.values(), *self.kept])
        self._files.clear()
        self.kept.clear()


def close_all(descriptors: list[int]) -> None:
    """Close each of these."""
    for descriptor in descriptors:
        os.close(descriptor)


def open_to_all(pipe: int) -> None:
    """So that a program may open /dev/stdout; where pipes have no mode it cannot."""
    try:
        os.fchmod(pipe, 0o666)
    except OSError:
        pass
