"""Messages with descriptors: what arrives is what was sent, and whatever else arrives ends the conversation."""

from __future__ import annotations

import array
import contextlib
import json
import os
import socket
import struct
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from belljar import channel
from belljar.channel import ChannelClosed

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Two ends, of which no test may leave a copy open."""
    ours, theirs = channel.pair()
    with ours, theirs:
        names = {name_of(end.fileno()) for end in (ours, theirs)}
        yield ours, theirs
    assert names.isdisjoint(open_names())


def open_names() -> list[str]:
    """What every open descriptor of this process is, in the kernel's words; other tests' sandboxes have some, too."""
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the one that listed them, or closed meanwhile
            found.append(name_of(int(descriptor)))
    return found


def name_of(descriptor: int) -> str:
    return os.readlink(f"/proc/self/fd/{descriptor}")


def frame(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


# ---- what is sent arrives


@pytest.mark.parametrize(
    ("message", "blob"),
    [
        pytest.param({"a": 1, "b": [None, True, "é\u2028"]}, b"", id="message"),
        pytest.param({}, b"raw \x00\xff", id="blob"),
        pytest.param({"size": 3}, b"\x00\x00\x00\x00", id="both"),
        pytest.param({}, b"", id="neither"),
        pytest.param({}, bytes(channel.PACKET_BYTES_MAX - 4), id="as_large_as_allowed"),
    ],
)
def test_a_message_arrives_as_it_was_sent(pair: Pair, message: dict[str, object], blob: bytes) -> None:
    channel.send(pair[0], message, blob)
    assert channel.receive(pair[1]) == (message, blob, [])


@given(
    message=st.dictionaries(st.text(), st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.integers())),
    blob=st.binary(max_size=2000),
)
@settings(max_examples=100, deadline=None)
def test_any_message_arrives_as_it_was_sent(message: dict[str, object], blob: bytes) -> None:
    assert channel.parse(channel.build(message, blob)) == (message, blob)


def test_packets_do_not_run_into_each_other(pair: Pair) -> None:
    for number in range(5):
        channel.send(pair[0], {"number": number}, b"x" * number)
    assert [channel.receive(pair[1])[:2] for _ in range(5)] == [({"number": n}, b"x" * n) for n in range(5)]


@pytest.mark.parametrize("count", [1, 2, 3, channel.DESCRIPTORS_MAX])
def test_descriptors_arrive_and_are_not_inherited(pair: Pair, count: int) -> None:
    sent = [os.memfd_create(f"number-{number}") for number in range(count)]
    channel.send(pair[0], {"count": count}, descriptors=sent)
    message, _, received = channel.receive(pair[1], descriptors_max=count)
    assert message == {"count": count}
    assert [os.fstat(descriptor).st_ino for descriptor in received] == [os.fstat(each).st_ino for each in sent]
    assert not any(os.get_inheritable(descriptor) for descriptor in received)
    assert not set(received) & set(sent)
    close(*sent, *received)


def test_what_is_too_large_for_a_packet_travels_in_a_memfd(pair: Pair) -> None:
    content = os.urandom(4096) * 512
    memfd = os.memfd_create("large", os.MFD_CLOEXEC)
    os.write(memfd, channel.build({"size": len(content)}, content))
    channel.send(pair[0], {"in_memfd": True}, descriptors=[memfd])
    os.close(memfd)
    _, _, received = channel.receive(pair[1], descriptors_max=1)
    with open(received[0], "rb") as file:
        file.seek(0)
        assert channel.parse(file.read()) == ({"size": len(content)}, content)


def test_neither_end_survives_an_exec(pair: Pair) -> None:
    assert not any(os.get_inheritable(end.fileno()) for end in pair)


# ---- what is not a message


@pytest.mark.parametrize(
    "bytes_sent",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\x00", id="half_a_length"),
        pytest.param(b"\x00\x00\x00", id="most_of_a_length"),
        pytest.param(struct.pack(">I", 2**31) + b"{}", id="length_larger_than_allowed"),
        pytest.param(struct.pack(">I", 2**32 - 1), id="length_as_large_as_can_be"),
        pytest.param(struct.pack(">I", 3) + b"{}", id="length_one_too_large"),
        pytest.param(frame(b"{"), id="body_cut_short"),
        pytest.param(frame(b"[" * 100_000), id="body_is_a_nesting_bomb"),
        pytest.param(frame(b'{"a":' * 20_000 + b"1" + b"}" * 20_000), id="body_is_a_nesting_bomb_of_objects"),
        pytest.param(frame(b"[]"), id="body_is_a_list"),
        pytest.param(frame(b"null"), id="body_is_null"),
        pytest.param(frame(b"1e999"), id="body_is_infinite"),
        pytest.param(frame(b'"text"'), id="body_is_text"),
        pytest.param(frame(b"9" * 100_000), id="body_is_a_long_number"),
        pytest.param(frame(b'{"a":' + b"9" * 100_000 + b"}"), id="body_holds_a_long_number"),
        pytest.param(frame(b"\xff\xfe\xfd"), id="body_is_not_text"),
        pytest.param(frame(b"\xed\xa0\x80"), id="body_is_a_lone_surrogate"),
        pytest.param(frame(b"{}x"), id="body_has_more_than_json"),
        pytest.param(b"\x80\x04\x95\x0b\x00\x00\x00", id="a_pickle"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="another_protocol"),
    ],
)
def test_broken_frame_closes_the_channel(pair: Pair, bytes_sent: bytes) -> None:
    pair[0].send(bytes_sent)
    with pytest.raises(ChannelClosed):
        channel.receive(pair[1])


@given(packet=st.binary(max_size=300))
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_a_message_or_close_the_channel(packet: bytes) -> None:
    try:
        message, blob = channel.parse(packet)
    except ChannelClosed:
        return
    assert isinstance(message, dict)
    assert packet.endswith(blob)


def test_a_peer_that_leaves_closes_the_channel(pair: Pair) -> None:
    channel.send(pair[0], {"last": True})
    pair[0].close()
    assert channel.receive(pair[1])[0] == {"last": True}
    with pytest.raises(ChannelClosed):
        channel.receive(pair[1])
    with pytest.raises(ChannelClosed):
        channel.send(pair[1], {"anybody": "there"})


def test_a_peer_that_leaves_without_reading_closes_the_channel(pair: Pair) -> None:
    channel.send(pair[1], {"never": "read"})
    pair[0].close()
    with pytest.raises(ChannelClosed):
        channel.receive(pair[1])


def test_a_packet_larger_than_allowed_closes_the_channel(pair: Pair) -> None:
    pair[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    pair[0].send(frame(json.dumps({"a": "x" * (channel.PACKET_BYTES_MAX)}).encode()))
    with pytest.raises(ChannelClosed):
        channel.receive(pair[1])


def test_nothing_to_read_does_not_block(pair: Pair) -> None:
    pair[1].setblocking(False)
    with pytest.raises(BlockingIOError):
        channel.receive(pair[1])


def test_a_full_buffer_does_not_block(pair: Pair) -> None:
    pair[0].setblocking(False)
    with pytest.raises(BlockingIOError):
        for _ in range(10_000):
            channel.send(pair[0], {}, bytes(10_000))


# ---- unexpected descriptors


@pytest.mark.parametrize(
    ("sent_count", "allowed"),
    [(1, 0), (16, 0), (2, 1), (3, 1), (4, 3), (100, 1), (253, 2), (17, 16), (253, 16)],
    ids=lambda value: str(value),
)
def test_more_descriptors_than_allowed_close_the_channel_and_leak_nothing(
    pair: Pair, sent_count: int, allowed: int
) -> None:
    send_descriptors(pair[0], channel.build({"fine": True}), sent_count)
    with pytest.raises(ChannelClosed):
        channel.receive(pair[1], descriptors_max=allowed)
    assert open_names().count(name_of(pair[0].fileno())) == 1


def test_descriptors_of_a_broken_frame_are_closed(pair: Pair) -> None:
    send_descriptors(pair[0], b"\x00\x00", 2)
    with pytest.raises(ChannelClosed):
        channel.receive(pair[1], descriptors_max=2)
    assert open_names().count(name_of(pair[0].fileno())) == 1


def test_credentials_are_no_descriptors(pair: Pair) -> None:
    credentials = struct.pack("iII", os.getpid(), os.getuid(), os.getgid())
    pair[0].sendmsg([channel.build({"fine": True})], [(socket.SOL_SOCKET, 2, credentials)])  # SCM_CREDENTIALS
    assert channel.receive(pair[1], descriptors_max=1) == ({"fine": True}, b"", [])


def test_the_channel_itself_can_be_sent_over_the_channel(pair: Pair) -> None:
    channel.send(pair[0], {}, b"", [pair[0].fileno(), pair[1].fileno()])
    _, _, received = channel.receive(pair[1], descriptors_max=2)
    close(*received)


def send_descriptors(peer: socket.socket, packet: bytes, count: int) -> None:
    rights = array.array("i", [peer.fileno()] * count)
    peer.sendmsg([packet], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])


def close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
