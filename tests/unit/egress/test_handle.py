"""The host's end of the socket to the egress process, when that process has been taken over."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from belljar.egress import handle
from belljar.egress.handle import Egress, EgressLost

_HOSTILE = """
import sys; sys.path.insert(0, sys.argv[2])
import socket
from belljar import channel
control = socket.socket(fileno=int(sys.argv[1]))
channel.receive(control)
channel.send(control, {"ready": True})
while True:
    message, _, _ = channel.receive(control, descriptors_max=1)
    ask, word = message["ask"], message["word"]
    honest = {"connections": 0, "refused": 0, "sent_bytes": 0, "received_bytes": 0}
    HERE
"""
_OPENS = 'if word == "open": channel.send(control, {"ask": ask})\n    else: '


def _outcome(monkeypatch: pytest.MonkeyPatch, answer: str) -> list[Any]:
    """The result of opening a proxy and closing it again."""
    monkeypatch.setattr(handle, "_START", _HOSTILE.replace("HERE", answer))

    async def main() -> list[Any]:
        complaints: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
        egress = Egress({})
        with socket.create_server(("127.0.0.1", 0)) as listener:
            try:
                async with asyncio.timeout(30):
                    opened = await egress.open(listener.fileno())
                    counts = await opened.close()
                return [counts, dict(egress.counts), complaints]
            finally:
                await egress.close()

    return asyncio.run(main())


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param('channel.send(control, {"ask": ask})', id="no_counts"),
        pytest.param('channel.send(control, {"ask": ask, **honest, "connections": "1"})', id="text"),
        pytest.param('channel.send(control, {"ask": ask, **honest, "connections": -5})', id="negative"),
        pytest.param('channel.send(control, {"ask": ask, **honest, "connections": 1 << 70})', id="too_large"),
        pytest.param('channel.send(control, {"ask": ask, **honest, "more": 1})', id="more"),
        pytest.param('channel.send(control, {"ask": ask + 1, **honest})', id="unknown_request"),
        pytest.param('channel.send(control, {"ask": [ask], **honest})', id="unhashable"),
        pytest.param("channel.send(control, {})", id="nothing"),
        pytest.param('channel.send(control, {"ask": ask, **honest}, descriptors=[0])', id="descriptor"),
        pytest.param('control.send(b"x")', id="not_a_packet"),
    ],
)
def test_a_forged_answer_ends_the_process_and_nothing_else(monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    counts, totals, complaints = _outcome(monkeypatch, _OPENS + answer)
    assert counts is None  # as for a process that has died
    assert set(totals.values()) == {0}
    assert complaints == []


def test_an_honest_answer_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    counts, totals, _ = _outcome(monkeypatch, _OPENS + 'channel.send(control, {"ask": ask, **honest, "refused": 2})')
    assert counts == totals == {"connections": 0, "refused": 2, "sent_bytes": 0, "received_bytes": 0}


def test_a_refusal_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EgressLost) as caught:
        _outcome(monkeypatch, 'channel.send(control, {"ask": ask, "failed": ["x" * 9000]})')
    assert len(str(caught.value)) <= 500


def test_a_flood_of_messages_does_not_block_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EgressLost):
        _outcome(monkeypatch, 'while True: channel.send(control, {"tell": "x"})')
