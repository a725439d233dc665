"""Messages with file descriptors over a unix SEQPACKET socket.

Why not multiprocessing.Connection: it unpickles what it reads, and one end of this channel runs next to hostile
code. Parsing JSON cannot run code.

Why SEQPACKET: a packet arrives whole with its descriptors or not at all, so neither end ever waits for the rest of
a message that its peer never sends.

Why descriptors travel with the message: the receiver never opens a path, so the host alone decides which files a
child can see. What is too large for one packet travels in a memfd.

A packet is four bytes of length, that much JSON (always an object), and a blob of raw bytes; either may be empty.
Messages that are sent for every run are packed numbers in the blob alone: parsing JSON in a process that has just
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

PACKET_BYTES_MAX = 120 * 1024  # fits in the kernel's default socket buffer
DESCRIPTORS_MAX = 16
_HEAD = struct.Struct(">I")
NO_MESSAGE = _HEAD.pack(0)  # the first bytes of a packet that holds only a blob
_DESCRIPTOR = struct.Struct("=i")  # not `array`: every guest would copy pages of that library

# Plain numbers from `_socket`: the enums of `socket` create objects on every use, and hundreds of them on import.
_SOL_SOCKET, _SCM_RIGHTS = _socket.SOL_SOCKET, _socket.SCM_RIGHTS
_NO_SIGNAL, _CLOSE_ON_EXEC = _socket.MSG_NOSIGNAL, _socket.MSG_CMSG_CLOEXEC
DESCRIPTORS_CUT = _socket.MSG_CTRUNC
_CUT_SHORT = _socket.MSG_TRUNC | DESCRIPTORS_CUT
_UNIX, _PACKETS = _socket.AF_UNIX, _socket.SOCK_SEQPACKET
NOW = _socket.MSG_DONTWAIT  # a flag for `send_packet` and `recv`: never wait, even on a blocking socket

Peer = _socket.socket  # the base class of `socket.socket`


class ChannelClosed(Exception):
    """The peer has closed its end, or sent something that is not a well-formed packet."""


class DescriptorsLost(ChannelClosed):
    """A packet lost descriptors: the peer sent too many, or this process has no descriptors left.

    A trusted peer never sends too many, so the channel can be used further; `message` is the packet's message.
    """

    def __init__(self, message: dict[str, Any]) -> None:
        super().__init__("a packet arrived without all of its descriptors")
        self.message = message


def pair() -> tuple[socket.socket, socket.socket]:
    """Return two connected sockets that are closed on exec."""
    import socket  # imported here, because guests never call this

    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def bare_pair() -> tuple[Peer, Peer]:
    """Like `pair`, for every run: saves the three system calls that creating a `socket.socket` makes."""
    return _socket.socketpair(_UNIX, _PACKETS)


def send(peer: Peer, message: dict[str, Any], blob: bytes = b"", descriptors: Sequence[int] = ()) -> None:
    """Send one message; the caller keeps its own copies of `descriptors`.

    Raises:
        ChannelClosed: the peer has closed its end.
        BlockingIOError: `peer` is non-blocking and its buffer is full.
    """
    send_packet(peer, build(message, blob), descriptors)


def build(message: dict[str, Any], blob: bytes = b"") -> bytes:
    """Encode a message and a blob as one packet."""
    if not message:
        return NO_MESSAGE + blob
    text = json.dumps(message, separators=(",", ":")).encode()
    return b"".join((_HEAD.pack(len(text)), text, blob))


def send_packet(peer: Peer, packet: bytes, descriptors: Sequence[int] = (), flags: int = 0) -> None:
    """Send a packet from `build`; raises like `send`."""
    ancillary = [(_SOL_SOCKET, _SCM_RIGHTS, b"".join(map(_DESCRIPTOR.pack, descriptors)))] if descriptors else ()
    try:
        peer.sendmsg((packet,), ancillary, _NO_SIGNAL | flags)
    except (BrokenPipeError, ConnectionError) as error:
        raise ChannelClosed("the peer has left") from error


def receive(peer: Peer, descriptors_max: int = 0, flags: int = 0) -> tuple[dict[str, Any], bytes, list[int]]:
    """Wait for one message; return it with its blob and its descriptors, which the caller owns.

    Raises:
        ChannelClosed: the peer has closed its end, or sent something that is not a well-formed packet.
        DescriptorsLost: the packet had more than `descriptors_max` descriptors, or this process has none left.
        BlockingIOError: `peer` is non-blocking and no packet has arrived.
    """
    space = _socket.CMSG_SPACE(descriptors_max * _DESCRIPTOR.size) if descriptors_max else 0
    try:
        packet, ancillary, flags, _ = peer.recvmsg(PACKET_BYTES_MAX, space, _CLOSE_ON_EXEC | flags)
    except ConnectionError as error:
        raise ChannelClosed("the peer has left") from error
    descriptors = descriptors_in(ancillary) if ancillary else []
    try:
        if flags & _CUT_SHORT or len(descriptors) > descriptors_max:  # the kernel pads the buffer, so more may fit
            if flags & _CUT_SHORT == DESCRIPTORS_CUT:
                raise DescriptorsLost(parse(packet)[0])
            raise ChannelClosed("a packet was larger than allowed")
        message, blob = parse(packet)
        return message, blob, descriptors
    except BaseException:
        for descriptor in descriptors:  # the caller never gets them
            os.close(descriptor)
        raise


def parse(packet: bytes) -> tuple[dict[str, Any], bytes]:
    """Split a packet into its message and its blob.

    Raises:
        ChannelClosed: the packet is empty (the peer has closed its end) or malformed.
    """
    if not packet:
        raise ChannelClosed("the peer has left")
    if len(packet) < _HEAD.size:
        raise ChannelClosed("a packet was too short")
    if packet.startswith(NO_MESSAGE):
        return {}, packet[_HEAD.size :]
    end = _HEAD.size + _HEAD.unpack_from(packet)[0]
    if end > len(packet):
        raise ChannelClosed("a packet was shorter than its header says")
    try:
        message = json.loads(packet[_HEAD.size : end])
    except (ValueError, RecursionError) as error:
        raise ChannelClosed("a packet was not JSON") from error
    if not isinstance(message, dict):
        raise ChannelClosed("a packet was not an object")
    return message, packet[end:]


def descriptors_in(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    """Return the descriptors in a packet's ancillary data; the caller owns them."""
    found: list[int] = []
    for level, kind, content in ancillary:
        if level == _SOL_SOCKET and kind == _SCM_RIGHTS:
            whole = content[: len(content) - len(content) % _DESCRIPTOR.size]
            found += [descriptor for (descriptor,) in _DESCRIPTOR.iter_unpack(whole)]
    return found
