"""Frames about relayed descriptors, from a container that the host does not trust."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from belljar import channel
from belljar.backends.gvisor import relay as module
from belljar.backends.gvisor.relay import DescriptorRelay


def with_relay(main: Callable[[DescriptorRelay, Any, list[dict[str, Any]]], Coroutine[Any, Any, None]]) -> None:
    """Relay a socket as descriptor 1, and check that no descriptor stays open."""

    async def run() -> None:
        before = set(os.listdir("/proc/self/fd"))
        ours, theirs = channel.pair()
        sent: list[dict[str, Any]] = []
        relay = DescriptorRelay(1, lambda message, blob: sent.append(message))
        with ours, theirs:
            relay.describe([theirs.fileno()])
            try:
                await main(relay, ours, sent)
            finally:
                relay.close()
        assert set(os.listdir("/proc/self/fd")) == before

    asyncio.run(run())


@pytest.mark.parametrize(
    "message",
    [
        pytest.param({}, id="no_number"),
        pytest.param({"descriptor": "1"}, id="number_is_text"),
        pytest.param({"descriptor": [1]}, id="number_is_a_list"),
        pytest.param({"descriptor": 1, "sent": 5}, id="sent_is_a_number"),
        pytest.param({"descriptor": 1, "sent": [{"kind": "socket", "descriptor": 1}]}, id="a_descriptor_of_ours"),
        pytest.param({"descriptor": 1, "sent": [{"kind": "socket", "descriptor": "x"}]}, id="new_number_is_text"),
        pytest.param({"descriptor": 1, "sent": [{"kind": "other"}] * 9}, id="too_many_descriptors"),
    ],
)
def test_a_malformed_frame_is_refused(message: dict[str, Any]) -> None:
    async def main(relay: DescriptorRelay, ours: Any, sent: list[dict[str, Any]]) -> None:
        with pytest.raises(ValueError, match="a frame"):
            relay.receive(message, b"x")
        relay.receive({"descriptor": 1}, b"still there")
        assert channel.Peer.recv(ours, 100) == b"still there"

    with_relay(main)


def test_a_packet_that_no_socket_takes_is_dropped() -> None:
    async def main(relay: DescriptorRelay, ours: Any, sent: list[dict[str, Any]]) -> None:
        relay.receive({"descriptor": 1}, b"x" * (64 << 20))
        relay.receive({"descriptor": 1}, b"next")
        assert channel.Peer.recv(ours, 100) == b"next"

    with_relay(main)


def test_a_container_that_ignores_a_pause_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames without a blob count, too: unread frames are kept in the host's memory."""
    monkeypatch.setattr(module, "_UNREAD_BYTES_MAX", 2 << 20)

    async def main(relay: DescriptorRelay, ours: Any, sent: list[dict[str, Any]]) -> None:
        with pytest.raises(ValueError, match="more than is read"):
            for _ in range(100_000):
                relay.receive({"descriptor": 1}, b"x")
        assert sent[-1]["is_paused"] is True

    with_relay(main)


def test_a_descriptor_closed_while_it_is_full_does_not_block_the_others() -> None:
    async def main(relay: DescriptorRelay, ours: Any, sent: list[dict[str, Any]]) -> None:
        other, theirs = channel.pair()
        with other, theirs:
            relay.describe([theirs.fileno()])
            for _ in range(1000):
                relay.receive({"descriptor": 1}, b"x" * 4096)  # more than its buffer holds
            relay.receive({"descriptor": 2}, b"for another descriptor")
            relay._drop(1)
            async with asyncio.timeout(10):
                while True:
                    try:
                        assert other.recv(100, channel.NOW) == b"for another descriptor"
                    except BlockingIOError:
                        await asyncio.sleep(0)
                    else:
                        return

    with_relay(main)
