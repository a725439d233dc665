"""The client against the real server: the same words mean the same on both sides."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from belljar.client import (
    AsyncClient,
    Case,
    Client,
    Finished,
    Limits,
    Outcome,
    Output,
    Started,
    Status,
    save_artifacts,
)
from belljar.contract.errors import LimitAboveCeiling, UnknownLanguage, UnsafePath
from belljar.contract.execution import MIB

FOREVER = "import time\nprint('begun', flush=True)\nwhile True: time.sleep(1)"


@pytest.fixture
def client(real_url: str) -> Iterator[Client]:
    """A client of the real server."""
    with Client(real_url) as opened:
        yield opened


def wait_until_idle(client: Client) -> None:
    deadline = time.monotonic() + 20
    while client.health().details["running"]:
        assert time.monotonic() < deadline, "the program still runs"
        time.sleep(0.02)


def test_a_program_gets_what_it_is_given_and_gives_back_files(client: Client, tmp_path: Path) -> None:
    (tmp_path / "local.bin").write_bytes(b"\xff\x00")
    code = """
import os, pathlib, sys
print(sys.stdin.read(), sys.argv[1:], os.environ["K"], pathlib.Path("d/text").read_text())
pathlib.Path("out").mkdir()
pathlib.Path("out/copy").write_bytes(pathlib.Path("bin").read_bytes())
"""
    outcome = client.execute(
        code,
        stdin="in ü",
        args=["x", "y z"],
        env={"K": "V"},
        files={"d/text": "ü", "bin": tmp_path / "local.bin"},
        artifacts=["out/**"],
    )
    assert (outcome.status, outcome.stdout) == (Status.OK, "in ü ['x', 'y z'] V ü\n"), outcome.stderr
    assert [path.read_bytes() for path in save_artifacts(outcome, tmp_path / "saved")] == [b"\xff\x00"]
    assert outcome.usage.wall_seconds > 0


@pytest.mark.parametrize(
    ("code", "status"),
    [
        pytest.param("undefined", Status.FAILED, id="failed"),
        pytest.param("import os; os.abort()", Status.CRASHED, id="crashed"),
        pytest.param("while True: pass", Status.TIMED_OUT, id="timed_out"),
        pytest.param("x = b'x' * 10**9", Status.OUT_OF_MEMORY, id="out_of_memory"),
    ],
)
def test_a_program_that_fails_is_an_outcome(client: Client, code: str, status: Status) -> None:
    outcome = client.execute(code, timeout=1, memory_mb=64)
    assert outcome.status is status
    if status is Status.FAILED:
        assert outcome.error is not None
        assert outcome.error.type == "NameError"


def test_whole_limits_are_understood(client: Client) -> None:
    limits = Limits(wall_seconds=3.0, memory_bytes=100 * MIB, output_bytes=1536)
    outcome = client.execute("print('x' * 5000)", limits=limits)
    assert outcome.stdout_cut
    assert len(outcome.stdout) == 1536


def test_errors_come_back_in_their_classes(client: Client) -> None:
    with pytest.raises(UnknownLanguage):
        client.execute("1", language="klingon")
    with pytest.raises(LimitAboveCeiling):
        client.execute("1", timeout=10**6)
    with pytest.raises(UnsafePath):
        client.execute("1", files={"../a": ""})


def test_events_arrive_while_the_program_runs_and_leaving_ends_it(client: Client) -> None:
    with contextlib.closing(client.stream(FOREVER, timeout=60)) as events:
        assert isinstance(next(events), Started)
        assert next(events) == Output(stream="stdout", text="begun\n")
    wait_until_idle(client)


def test_the_last_event_has_the_whole_outcome(client: Client) -> None:
    events = list(client.stream("import sys; print('a'); print('b', file=sys.stderr)"))
    assert isinstance(events[-1], Finished)
    assert (events[-1].outcome.stdout, events[-1].outcome.stderr) == ("a\n", "b\n")


def test_an_event_loop_sees_the_same(real_url: str) -> None:
    async def look() -> tuple[Outcome, list[object], list[str]]:
        async with AsyncClient(real_url) as client:
            outcome = await client.execute("print(1)")
            events: list[object] = [type(event) async for event in client.stream("print(2)")]
            many = [each.stdout async for each in client.run_many([f"print({n})" for n in range(5)])]
            return outcome, events, many

    outcome, events, many = asyncio.run(look())
    assert outcome.stdout == "1\n"
    assert events == [Started, Output, Finished]
    assert many == [f"{n}\n" for n in range(5)]


def test_cancelling_ends_the_program(real_url: str, client: Client) -> None:
    async def give_up() -> None:
        async with AsyncClient(real_url) as other:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(other.execute(FOREVER, timeout=60), 0.5)

    asyncio.run(give_up())
    wait_until_idle(client)


def test_leaving_many_early_ends_their_programs(client: Client) -> None:
    programs = ["print('quick')", *({"code": FOREVER, "timeout": 60} for _ in range(3))]
    with contextlib.closing(client.run_many(programs, max_in_flight=4)) as outcomes:
        assert next(outcomes).stdout == "quick\n"
    wait_until_idle(client)


def test_a_batch_of_programs(client: Client) -> None:
    answer = client.batch(["print(1)", {"code": "1/0"}, "print(3)"])
    assert [result.passed for result in answer.results] == [True, False, True]
    assert [result.outcome.stdout for result in answer.results if result.outcome] == ["1\n", "", "3\n"]
    assert (answer.passed, answer.failed) == (2, 1)


def test_a_program_against_cases(client: Client) -> None:
    cases = [
        Case(stdin="1 2", expected_stdout="3"),
        Case(stdin="2 2", expected_stdout="5"),
        Case(stdin="x", expected_stdout=""),
    ]
    answer = client.batch("print(sum(map(int, input().split())))", cases=cases, compare="tokens")
    assert [result.verdict for result in answer.results] == ["passed", "wrong_answer", "failed"]
    assert (answer.passed, answer.failed) == (1, 2)


def test_the_server_describes_itself(client: Client) -> None:
    assert client.health().ok
    assert "python" in [language.name for language in client.languages() if language.available]
    environments = {environment.name: environment for environment in client.environments()}
    assert "numpy" in environments["default"].packages
    server = client.info()
    assert server.default_limits == Limits()
    assert server.ceiling_limits.wall_seconds >= server.default_limits.wall_seconds
    assert server.isolation["seccomp"].state == "on"
