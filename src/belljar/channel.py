"""Messages with file descriptors over a unix SEQPACKET socket.

Why not multiprocessing.Connection: it unpickles what it reads, and one end of this channel sits next to hostile
code. JSON cannot run code on arrival.

Why SEQPACKET: a packet arrives whole with its descriptors or not at all, so neither end ever waits for the rest of
a message from a peer that has none.

Why descriptors travel with the message: the receiver then never opens a path, so the host alone decides which
files a child can see. What is too large for one packet travels in a memfd.

A packet is four bytes of length, that much JSON (always an object), and a blob of raw bytes; either may be empty.
What is said for every run is said in the blob alone, as packed numbers: parsing JSON in a process that has just
forked touches eighty pages, and copying them costs a quarter of the run.
"""

from __future__ import annotations

import _socket
import json
import os
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import socket

PACKET_BYTES_MAX = 120 * 1024  # the kernel's default socket buffer takes it in one piece
DESCRIPTORS_MAX = 16
_HEAD = struct.Struct(">I")
NO_MESSAGE = _HEAD.pack(0)  # how a packet begins that is all blob
_DESCRIPTOR = struct.Struct("=i")  # not `array`, whose library every guest would have copied

# Plain numbers: the enums of `socket` make objects on every use, and hundreds of them when it is imported.
_SOL_SOCKET, _SCM_RIGHTS = _socket.SOL_SOCKET, _socket.SCM_RIGHTS
_NO_SIGNAL, _CLOSE_ON_EXEC = _socket.MSG_NOSIGNAL, _socket.MSG_CMSG_CLOEXEC
DESCRIPTORS_CUT = _socket.MSG_CTRUNC
_CUT_SHORT = _socket.MSG_TRUNC | DESCRIPTORS_CUT
_UNIX, _PACKETS = _socket.AF_UNIX, _socket.SOCK_SEQPACKET
NOW = _socket.MSG_DONTWAIT  # a flag for `send_packet` and for `recv`: whatever the socket, never wait

Peer = _socket.socket  # which every socket is


class ChannelClosed(Exception):
    """The peer left, or sent anything but a well-formed packet."""


class DescriptorsLost(ChannelClosed):
    """A packet came without all of its descriptors: the peer sent too many, or this process has no room for more.

    From a peer that is trusted it is the latter, and the channel goes on: `message` is what the packet said.
    """

    def __init__(self, message: dict[str, Any]) -> None:
        super().__init__("a packet came without all of its descriptors")
        self.message = message


def pair() -> tuple[socket.socket, socket.socket]:
    """Two connected ends, neither inherited by an exec."""
    import socket  # here, since guests never come by

    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def bare_pair() -> tuple[Peer, Peer]:
    """`pair` for every run: without the three questions that a `socket.socket` asks the kernel when it is made."""
    return _socket.socketpair(_UNIX, _PACKETS)


def send(peer: Peer, message: dict[str, Any], blob: bytes = b"", descriptors: Sequence[int] = ()) -> None:
    """Send one message; the caller keeps its own copies of `descriptors`.

    Raises:
        ChannelClosed: nobody listens any more.
        BlockingIOError: `peer` does not block and its buffer is full.
    """
    send_packet(peer, build(message, blob), descriptors)


def build(message: dict[str, Any], blob: bytes = b"") -> bytes:
    """A packet as it travels."""
    if not message:
        return NO_MESSAGE + blob
    text = json.dumps(message, separators=(",", ":")).encode()
    return b"".join((_HEAD.pack(len(text)), text, blob))


def send_packet(peer: Peer, packet: bytes, descriptors: Sequence[int] = (), flags: int = 0) -> None:
    """`send` for a packet that is already built."""
    ancillary = [(_SOL_SOCKET, _SCM_RIGHTS, b"".join(map(_DESCRIPTOR.pack, descriptors)))] if descriptors else ()
    try:
        peer.sendmsg((packet,), ancillary, _NO_SIGNAL | flags)
    except (BrokenPipeError, ConnectionError) as error:
        raise ChannelClosed("the peer has left") from error


def receive(peer: Peer, descriptors_max: int = 0, flags: int = 0) -> tuple[dict[str, Any], bytes, list[int]]:
    """Wait for one message, its blob and its descriptors, which the caller now owns.

    A peer that sends more than `descriptors_max` descriptors is cut off: that is not a mistake of ours.

    Raises:
        ChannelClosed: the peer left, or sent anything but a well-formed packet.
        DescriptorsLost: not all of them fit.
        BlockingIOError: `peer` does not block and nothing is there.
    """
    space = _socket.CMSG_SPACE(descriptors_max * _DESCRIPTOR.size) if descriptors_max else 0
    try:
        packet, ancillary, flags, _ = peer.recvmsg(PACKET_BYTES_MAX, space, _CLOSE_ON_EXEC | flags)
    except ConnectionError as error:
        raise ChannelClosed("the peer has left") from error
    descriptors = descriptors_in(ancillary) if ancillary else []
    try:
        if flags & _CUT_SHORT or len(descriptors) > descriptors_max:  # the kernel's room for them is padded
            if flags & _CUT_SHORT == DESCRIPTORS_CUT:
                raise DescriptorsLost(parse(packet)[0])
            raise ChannelClosed("a packet was larger than allowed")
        message, blob = parse(packet)
        return message, blob, descriptors
    except BaseException:
        for descriptor in descriptors:  # no caller will ever see them
            os.close(descriptor)
        raise


def parse(packet: bytes) -> tuple[dict[str, Any], bytes]:
    """Split a packet into its message and its blob.

    Raises:
        ChannelClosed: it is not one of ours.
    """
    if not packet:
        raise ChannelClosed("the peer has left")
    if len(packet) < _HEAD.size:
        raise ChannelClosed("a packet was too short")
    if packet.startswith(NO_MESSAGE):
        return {}, packet[_HEAD.size :]
    end = _HEAD.size + _HEAD.unpack_from(packet)[0]
    if end > len(packet):
        raise ChannelClosed("a packet was shorter than it said")
    try:
        message = json.loads(packet[_HEAD.size : end])
    except (ValueError, RecursionError) as error:
        raise ChannelClosed("a packet was not JSON") from error
    if not isinstance(message, dict):
        raise ChannelClosed("a packet was not an object")
    return message, packet[end:]


def descriptors_in(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    """The descriptors that came with a packet, which the caller now owns."""
    found: list[int] = []
    for level, kind, content in ancillary:
        if level == _SOL_SOCKET and kind == _SCM_RIGHTS:
            whole = content[: len(content) - len(content) % _DESCRIPTOR.size]
            found += [descriptor for (descriptor,) in _DESCRIPTOR.iter_unpack(whole)]
    return found
