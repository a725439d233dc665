"""What is sent again, when, and what never is."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from belljar.client import AnswerLost, AsyncClient, Client, Outcome, Retries, Unreachable
from belljar.client.retries import Refused, Tries, read_retry_after
from belljar.contract.errors import (
    BelljarError,
    CallerError,
    Draining,
    JailSetupFailed,
    Overloaded,
    QueueFull,
    SandboxFault,
    ZygoteDied,
)

QUICK = Retries(attempts=3, total_seconds=20.0, first_pause_seconds=0.01)
NOW = "Wed, 21 Oct 2015 07:28:00 GMT"

Execute = Callable[..., Outcome]


@pytest.fixture(params=["blocking", "asynchronous"])
def execute(request: pytest.FixtureRequest, server: Any) -> Execute:
    """Run one program with either client, which must behave alike."""

    def in_a_loop(code: str, **asked: Any) -> Outcome:
        async def once() -> Outcome:
            async with AsyncClient(server.url, retries=QUICK) as client:
                return await client.execute(code, **asked)

        return asyncio.run(once())

    def here(code: str, **asked: Any) -> Outcome:
        with Client(server.url, retries=QUICK) as client:
            return client.execute(code, **asked)

    return here if request.param == "blocking" else in_a_loop


# ---- sent again


@pytest.mark.parametrize(
    ("status", "code"),
    [
        pytest.param(429, "queue_full", id="queue_full"),
        pytest.param(429, "a_word_of_tomorrow", id="429_with_an_unknown_code"),
        pytest.param(503, "draining", id="draining"),
        pytest.param(503, "jail_setup_failed", id="the_jail_could_not_be_built"),
    ],
)
def test_a_server_that_says_later_is_asked_again(server: Any, execute: Execute, status: int, code: str) -> None:
    server.script = [server.refuse(status, code), server.outcome()]
    assert execute("print('hi')").ok
    assert len(server.seen) == 2
    assert server.seen[0].body == server.seen[1].body


def test_a_proxy_that_says_later_is_asked_again(server: Any, execute: Execute) -> None:
    server.script = [server.reply(503, b"<html>busy</html>"), server.outcome()]
    assert execute("1").ok


def test_retry_after_in_seconds_is_honoured(server: Any, execute: Execute) -> None:
    server.script = [server.refuse(429, "queue_full", Retry_After="1"), server.outcome()]
    assert execute("1").ok
    assert server.seen[1].at - server.seen[0].at >= 1.0


def test_retry_after_as_a_date_is_honoured(server: Any, execute: Execute) -> None:
    later = format_datetime(datetime.now(UTC) + timedelta(seconds=2), usegmt=True)
    server.script = [server.refuse(503, "draining", Retry_After=later), server.outcome()]
    assert execute("1").ok
    assert server.seen[1].at - server.seen[0].at >= 0.5  # dates have whole seconds


def test_a_refused_connection_is_tried_again() -> None:
    """The server comes up while the client still tries."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))  # bound, but not listening yet: connections are refused

        def serve() -> None:
            listener.listen()
            peer, _ = listener.accept()
            with peer:
                peer.recv(65536)
                peer.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 17\r\n\r\n{"languages": []}')

        retries = Retries(attempts=100, total_seconds=20.0, first_pause_seconds=0.05, longest_pause_seconds=0.05)
        thread = threading.Timer(0.2, serve)
        thread.start()
        with Client(f"http://127.0.0.1:{listener.getsockname()[1]}", retries=retries) as client:
            assert client.languages() == []
        thread.join()


def test_a_question_is_asked_again_when_its_answer_is_lost(server: Any) -> None:
    server.script = [server.hang_up(), server.reply(200, {"languages": []})]
    with Client(server.url, retries=QUICK) as client:
        assert client.languages() == []


def test_a_stream_is_begun_again_when_it_was_refused(server: Any, body: Any) -> None:
    server.script = [server.refuse(429, "queue_full"), server.stream([{"event": "finished", **body()}])]
    with Client(server.url, retries=QUICK) as client:
        assert len(list(client.stream("1"))) == 1


# ---- never sent again


@pytest.mark.parametrize("status", [502, 504])
def test_a_proxy_that_lost_the_answer_is_not_asked_again(server: Any, execute: Execute, status: int) -> None:
    server.script = [server.reply(status, b"<html>Bad gateway</html>"), server.outcome()]
    with pytest.raises(AnswerLost, match="Bad gateway"):
        execute("1")
    assert len(server.seen) == 1


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        pytest.param("zygote_died", ZygoteDied, id="died_beneath_it"),
        pytest.param("sandbox_fault", SandboxFault, id="some_fault"),
        pytest.param("internal_error", SandboxFault, id="a_bug"),
    ],
)
def test_a_fault_that_may_have_come_late_is_not_asked_again(
    server: Any, execute: Execute, code: str, kind: type[BelljarError]
) -> None:
    server.script = [server.refuse(503, code, Retry_After="1"), server.outcome()]
    with pytest.raises(kind):
        execute("1")
    assert len(server.seen) == 1


def test_a_connection_lost_after_sending_is_not_tried_again(server: Any, execute: Execute) -> None:
    server.script = [server.hang_up(), server.outcome()]
    with pytest.raises(AnswerLost, match="may have run"):
        execute("1")
    assert len(server.seen) == 1


def test_half_an_answer_is_not_asked_for_again(server: Any, execute: Execute) -> None:
    def half(exchange: Any) -> None:
        exchange.send_response(200)
        exchange.send_header("Content-Length", "1000")
        exchange.end_headers()
        exchange.wfile.write(b'{"id": ')
        exchange.end()

    server.script = [half, server.outcome()]
    with pytest.raises(AnswerLost):
        execute("1")
    assert len(server.seen) == 1


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 413, 422, 500])
def test_what_will_not_change_is_not_asked_again(server: Any, execute: Execute, status: int) -> None:
    server.script = [server.refuse(status, "a_word_of_tomorrow"), server.outcome()]
    with pytest.raises(CallerError if status < 500 else SandboxFault):
        execute("1")
    assert len(server.seen) == 1


def test_health_is_asked_once(server: Any) -> None:
    server.script = [server.refuse(429, "queue_full"), server.reply(200, {"status": "ok"})]
    with Client(server.url, retries=QUICK) as client, pytest.raises(Overloaded):
        client.health()
    assert len(server.seen) == 1


# ---- bounds


def test_attempts_are_bounded_and_the_last_error_is_raised(server: Any, execute: Execute) -> None:
    server.script = [server.refuse(429, "queue_full", "all full", {"queued": 7})]
    with pytest.raises(QueueFull, match="all full") as caught:
        execute("1")
    assert caught.value.details["queued"] == 7
    assert len(server.seen) == QUICK.attempts


def test_a_pause_past_the_total_time_is_not_begun(server: Any, execute: Execute) -> None:
    server.script = [server.refuse(503, "draining", Retry_After="3600")]
    begun = time.monotonic()
    with pytest.raises(Draining) as caught:
        execute("1")
    assert caught.value.retry_after_seconds == 3600
    assert time.monotonic() - begun < 10
    assert len(server.seen) == 1


def test_a_closed_port_is_unreachable_in_the_end() -> None:
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        client = Client(f"http://127.0.0.1:{unheard.getsockname()[1]}", retries=QUICK)
        with client, pytest.raises(Unreachable, match="nothing was sent"):
            client.execute("1")


def test_total_time_counts_from_the_first_attempt() -> None:
    clock = iter([0.0, 5.0, 9.5])
    tries = Tries(Retries(attempts=10, total_seconds=10.0), now=lambda: next(clock), spread=lambda: 0.0)
    refused = Refused(QueueFull("full"), may_send_again=True, retry_after_seconds=1.0)
    assert tries.pause_seconds(refused) == 1.0
    with pytest.raises(QueueFull):
        tries.pause_seconds(refused)


def test_pauses_grow_to_a_bound_and_are_spread() -> None:
    refused = Refused(QueueFull("full"), may_send_again=True)
    policy = Retries(attempts=99, total_seconds=1e9, first_pause_seconds=1.0, longest_pause_seconds=4.0)
    shortest = Tries(policy, now=lambda: 0.0, spread=lambda: 0.0)
    longest = Tries(policy, now=lambda: 0.0, spread=lambda: 1.0)
    assert [shortest.pause_seconds(refused) for _ in range(5)] == [0.5, 1.0, 2.0, 2.0, 2.0]
    assert [longest.pause_seconds(refused) for _ in range(5)] == [1.0, 2.0, 4.0, 4.0, 4.0]


def test_retries_wait_as_long_as_the_server_says() -> None:
    refused = Refused(QueueFull("full"), may_send_again=True, retry_after_seconds=8.0)
    pauses = [Tries(Retries(attempts=2), spread=lambda s=spread: s).pause_seconds(refused) for spread in (0.0, 0.5, 1)]
    assert pauses == [8.0, 9.0, 10.0]


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        pytest.param({"retry-after": "7"}, 7.0, id="seconds"),
        pytest.param({"retry-after": " 1.5 "}, 1.5, id="seconds_with_a_fraction"),
        pytest.param({"retry-after": "Wed, 21 Oct 2015 07:28:30 GMT", "date": NOW}, 30.0, id="date_by_its_own_clock"),
        pytest.param({"retry-after": "Wed, 21 Oct 2015 07:27:00 GMT", "date": NOW}, 0.0, id="date_in_the_past"),
        pytest.param({"retry-after": "Wed, 21 Oct 2015 07:28:30 -0000", "date": NOW}, 30.0, id="date_without_a_zone"),
        pytest.param({}, None, id="nothing"),
        pytest.param({"retry-after": ""}, None, id="empty"),
        pytest.param({"retry-after": "-5"}, None, id="negative"),
        pytest.param({"retry-after": "nan"}, None, id="not_a_number"),
        pytest.param({"retry-after": "9" * 400}, None, id="infinite"),
        pytest.param({"retry-after": "²"}, None, id="a_digit_of_another_kind"),
        pytest.param({"retry-after": "soon"}, None, id="a_word"),
        pytest.param({"retry-after": "Wed, 99 Oct 2015 07:28:30 GMT"}, None, id="no_such_day"),
    ],
)
def test_retry_after_is_read(headers: dict[str, str], seconds: float | None) -> None:
    assert read_retry_after(headers) == seconds


def test_the_step_of_a_jail_is_kept(server: Any, execute: Execute) -> None:
    server.script = [server.refuse(503, "jail_setup_failed", "no", {"step": "mounts"})]
    with pytest.raises(JailSetupFailed) as caught:
        execute("1")
    assert caught.value.step == "mounts"
