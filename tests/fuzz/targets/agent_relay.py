"""Packets and descriptors of a guest to the agent of its container, which serves other guests as well."""

from __future__ import annotations

import os
import socket

import harness

from belljar.inside.gvisor import event_loop, relay

ALLOWED = ()
TOKENS = tuple(bytes((each,)) for each in range(10))
_said: list[tuple[dict, bytes]] = []


def _descriptors(kind: int) -> tuple[list[int], list[int]]:
    """What a guest may send, and what it keeps."""
    if kind == 0:
        return [], []
    if kind == 1:
        pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return [pair[0].detach()], [pair[1].detach()]
    if kind == 2:
        pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        return [pair[0].detach()], [pair[1].detach()]
    if kind == 3:
        return [socket.socket(socket.AF_INET, socket.SOCK_STREAM).detach()], []
    if kind == 4:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind("")
        listener.listen(1)
        return [listener.detach()], []
    if kind == 5:
        read, write = os.pipe()
        return [read, write], []
    if kind == 6:
        return [os.open("/", os.O_PATH)], []
    if kind == 7:
        return [os.open("/", os.O_RDONLY) for _ in range(8)], []
    if kind == 8:
        return [socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).detach()], []
    return [os.open("/dev/null", os.O_RDWR) for _ in range(12)], []


def run(data: bytes) -> None:
    _said.clear()
    send, event_loop.send = event_loop.send, lambda message, blob=b"": _said.append((message, blob))  # there is no host
    try:
        _run(data)
    finally:
        event_loop.send = send


def _run(data: bytes) -> None:
    kinds = [
        {"kind": "socket", "descriptor": 1},
        {"kind": "pipe", "descriptor": 2},
        {"kind": "source", "descriptor": 3},
    ]
    held = relay.DescriptorRelay(1)
    channel, pipe, source = held.open(kinds, b"")
    guest = socket.socket(fileno=channel)
    guest.setblocking(False)
    kept = [pipe, source]
    try:
        for packet in harness.pieces(data):
            _speak(held, guest, kept, packet)
        held.drain()
    finally:
        held.close()
        guest.close()
        relay.close_all(kept)
    for message, _ in _said:
        assert message["run"] == 1
        assert len(message.get("sent", ())) <= 8


def _speak(held: relay.DescriptorRelay, guest: socket.socket, kept: list[int], packet: bytes) -> None:
    kind, content = (packet[0] % 10, packet[1:]) if packet else (0, b"")
    sent, own = _descriptors(kind)
    kept += own
    try:
        socket.send_fds(guest, [content], sent)
    except OSError:
        pass  # it has been hung up on
    finally:
        relay.close_all(sent)
    for number in list(held._sockets):
        if number in held._sockets:
            held._read_socket(number)
    if content[:1] == b"p":
        os.write(kept[0], content)
    elif content[:1] == b"c":
        held.finish(-1)
    elif content[:1] == b"s":
        held.send(-1, content, [{"kind": "pipe", "descriptor": max(held._pipes, default=3) + 2}], b"")
    elif content[:1] == b"z":
        held.is_held = len(content) % 2 == 0
        held.update_pause()
    elif content[:1] == b"i":
        held.send(3, content, [], b"")
    elif content[:1] == b"e":
        held.finish(3)
