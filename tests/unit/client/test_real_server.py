"""The client against the real server: the same words mean the same on both sides."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from server_process import Serve

import belljar
from belljar.client import (
    AsyncClient,
    Case,
    Client,
    Coverage,
    Event,
    Finished,
    Limits,
    Outcome,
    Output,
    Restriction,
    Started,
    Status,
    ToolAnswered,
    ToolCalled,
    save_artifacts,
)
from belljar.contract.errors import LimitAboveCeiling, UnknownLanguage, UnsafePath
from belljar.contract.execution import MIB

MCP_TOOLS = Path(__file__).parents[1] / "tools" / "mcp_tools.py"
ADD = "import tools\nprint(tools.add(1))"
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
    outcome = client.execute(code, timeout=1 if status is Status.TIMED_OUT else 60, memory_mb=64)
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


def test_the_compilers_words_come_back(client: Client, box: belljar.Sandbox) -> None:
    broken = "int main( {"
    here = box.run(broken, language="c").compilation
    assert here is not None
    assert "error" in here.stderr
    (result,) = client.batch([{"code": broken, "language": "c"}]).results
    finished = list(client.stream(broken, language="c"))[-1]
    assert isinstance(finished, Finished)
    for outcome in (client.execute(broken, language="c"), result.outcome, finished.outcome):
        assert outcome is not None
        assert outcome.status is Status.COMPILE_FAILED
        assert outcome.compilation is not None
        same = {"wall_seconds": here.wall_seconds, "was_cached": here.was_cached}  # the later one finds it in the cache
        assert dataclasses.replace(outcome.compilation, **same) == here


def test_the_compile_step_of_a_program_that_runs_is_reported(client: Client) -> None:
    outcome = client.execute('#include <stdio.h>\nint main(void) { puts("hi"); return 0; }', language="c")
    assert (outcome.status, outcome.stdout) == (Status.OK, "hi\n")
    assert outcome.compilation is not None
    assert outcome.compilation.status is Status.OK


def test_a_restriction_and_coverage_mean_what_they_mean_in_a_sandbox(client: Client, box: belljar.Sandbox) -> None:
    code, only_math = "import math\nimport os", Restriction(imports=("math",))
    assert client.execute(code, restrict=only_math).status is box.run(code, restrict=only_math).status is Status.DENIED
    code = "if not __name__:\n    print(1)"
    measured = client.execute(code, coverage=Coverage(branch=True)).coverage
    assert measured is not None
    assert measured == box.run(code, coverage=Coverage(branch=True)).coverage


# ---- tools


@pytest.fixture(scope="module")
def caller_of_tools(serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A client of a server that has tools."""
    config = tmp_path_factory.mktemp("settings") / "tools.toml"
    config.write_text(f'[tools.servers.tests]\ncommand = ["{sys.executable}", "{MCP_TOOLS}", "stdio"]\n')
    with serve("serve", "--config", str(config)) as server, Client(server.url) as opened:
        yield opened


def test_calls_of_tools_are_told(caller_of_tools: Client) -> None:
    outcome = caller_of_tools.execute(ADD, tools=["add"], timeout=30)
    assert (outcome.status, outcome.stdout) == (Status.OK, "3\n")
    assert [(call.tool, call.ok) for call in outcome.tool_calls] == [("add", True)]
    assert outcome.tool_calls[0].seconds > 0


def test_calls_of_tools_are_events(caller_of_tools: Client) -> None:
    check_calls(list(caller_of_tools.stream(ADD, tools=True, timeout=30)))


def test_a_session_tells_of_its_calls(caller_of_tools: Client) -> None:
    with caller_of_tools.session(tools=["add"], timeout=30) as session:
        assert [call.tool for call in session.run(ADD).tool_calls] == ["add"]
        check_calls(list(session.stream(ADD)))


def check_calls(events: list[Event]) -> None:
    called, answered = (each for each in events if isinstance(each, ToolCalled | ToolAnswered))
    assert called == ToolCalled(number=1, tool="add", arguments={"a": 1, "b": 2})
    assert isinstance(answered, ToolAnswered)
    assert (answered.number, answered.call.tool, answered.call.ok, answered.result) == (1, "add", True, 3)
    finished = events[-1]
    assert isinstance(finished, Finished)
    assert (finished.outcome.tool_calls, finished.outcome.stdout) == ((answered.call,), "3\n")


def test_the_server_describes_itself(client: Client) -> None:
    assert client.health().ok
    assert "python" in [language.name for language in client.languages() if language.available]
    environments = {environment.name: environment for environment in client.environments()}
    assert "numpy" in environments["default"].packages
    server = client.info()
    assert server.default_limits == Limits()
    assert server.ceiling_limits.wall_seconds >= server.default_limits.wall_seconds
    assert server.isolation["seccomp"].state == "on"
