"""The client and what can happen to it: what is sent, what comes back, what breaks in between."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import json
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from belljar.client import (
    AnswerLost,
    AsyncClient,
    Case,
    Client,
    Compilation,
    Coverage,
    CoverageReport,
    Display,
    Event,
    File,
    FileCoverage,
    Finished,
    Limits,
    NetworkUse,
    Outcome,
    Output,
    ProgramError,
    Restriction,
    Retries,
    Started,
    Status,
    ToolAnswered,
    ToolCall,
    ToolCalled,
    Usage,
)
from belljar.contract.errors import CallerError, InvalidExecution, QueueFull, SandboxFault, UnknownLanguage, ZygoteDied
from belljar.contract.execution import MIB, describe

ONCE = Retries(attempts=1)


@pytest.fixture
def client(server: Any) -> Any:
    """A client of the scripted server."""
    with Client(server.url, api_key="bj_secret", retries=ONCE, room_seconds=0.5) as opened:
        yield opened


# ---- what is sent


def test_only_what_is_named_is_sent(server: Any, client: Client) -> None:
    client.execute("print(1)")
    assert server.seen[0].body == {"code": "print(1)"}
    assert server.seen[0].headers["authorization"] == "Bearer bj_secret"
    assert server.seen[0].headers["content-type"] == "application/json"


def test_everything_that_is_named_is_sent(server: Any, client: Client, tmp_path: Path) -> None:
    (tmp_path / "local.bin").write_bytes(b"\xff")
    client.execute(
        "1",
        language="cpp",
        stdin="ü".encode(),
        args=("a", "b"),
        env={"K": "V"},
        files={"t": "ü", "b": b"\x00", "p": tmp_path / "local.bin"},
        artifacts=["*.png"],
        timeout=3,
        memory_mb=64,
        limits={"processes": 8},
        environment="data",
        network=True,
        tools=["web_search"],
        coverage={"branch": True},
        restrict={"imports": ["math"]},
    )
    assert server.seen[0].body == {
        "code": "1",
        "language": "cpp",
        "stdin": "ü",
        "args": ["a", "b"],
        "env": {"K": "V"},
        "files": [
            {"path": "t", "content": "ü", "encoding": "utf-8"},
            {"path": "b", "content": "AA==", "encoding": "base64"},
            {"path": "p", "content": "/w==", "encoding": "base64"},
        ],
        "artifacts": ["*.png"],
        "timeout": 3,
        "limits": {"processes": 8, "memory_mb": 64},
        "environment": "data",
        "network": True,
        "tools": ["web_search"],
        "coverage": {"branch": True},
        "restrict": {"imports": ["math"]},
    }


def test_what_a_sandbox_takes_is_sent_in_the_words_of_the_api(server: Any, client: Client) -> None:
    client.execute("1", coverage=Coverage(branch=True), restrict=Restriction(imports=("math",), print_characters=9))
    assert server.seen[0].body == {
        "code": "1",
        "coverage": {"branch": True},
        "restrict": {"imports": ["math"], "max_print_length": 9},
    }


def test_files_may_be_a_list(server: Any, client: Client, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    client.execute("1", files=[tmp_path / "a.txt", File(path="d/b", content=b"b")])
    assert [file["path"] for file in server.seen[0].body["files"]] == ["a.txt", "d/b"]


def test_whole_limits_are_a_base_for_the_short_names(server: Any, client: Client) -> None:
    client.execute("1", limits=Limits(memory_bytes=100 * MIB, output_bytes=512), timeout=2)
    assert server.seen[0].body["limits"] == {
        "wall_seconds": 2,
        "cpu_seconds": 10.0,
        "memory_mb": 100,
        "output_kb": 0.5,
        "disk_mb": 256,
        "processes": 64,
    }


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        pytest.param({"stdin": b"\xff"}, "not UTF-8", id="stdin_is_not_text"),
        pytest.param({"stdin": 1}, "stdin must be", id="stdin_is_a_number"),
        pytest.param({"args": "abc"}, "list of strings", id="args_is_a_string"),
        pytest.param({"files": "abc"}, "files must be", id="files_is_a_string"),
        pytest.param({"files": {"a": 1}}, "a string, bytes or a Path", id="a_file_is_a_number"),
        pytest.param({"files": {1: "a"}}, "must be a string", id="a_path_is_a_number"),
        pytest.param({"files": [1]}, "a File or a Path", id="files_is_a_list_of_numbers"),
        pytest.param({"files": {"a": Path("/nowhere/at/all")}}, "cannot read", id="a_file_is_not_there"),
        pytest.param({"limits": 5}, "limits must be", id="limits_is_a_number"),
        pytest.param({"memory_mb": 1, "limits": {"memory_mb": 2}}, "disagree", id="two_limits_disagree"),
        pytest.param({"timeout": float("nan")}, "cannot be written as JSON", id="timeout_is_no_number"),
        pytest.param({"env": ["K=V"]}, "env must be a mapping", id="env_is_a_list"),
        pytest.param({"restrict": "math"}, "restrict must be a mapping", id="restrict_is_a_string"),
        pytest.param({"tools": [print]}, "the name of a tool that the server has", id="a_tool_is_a_function"),
        pytest.param({"env": {"K": "\ud800"}}, "lone surrogate", id="half_a_character"),
        pytest.param({"env": {"K": object()}}, "cannot be written as JSON", id="an_object"),
    ],
)
def test_what_cannot_be_sent_is_refused_here(client: Client, server: Any, asked: Any, message: str) -> None:
    with pytest.raises(InvalidExecution, match=message):
        client.execute("1", **asked)
    assert not server.seen


def test_a_misspelt_name_is_an_error(client: Client) -> None:
    with pytest.raises(TypeError, match="tiemout"):
        client.execute("1", tiemout=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="tiemout"):  # reported before the invalid limits
        client.execute("1", tiemout=1, limits=5)  # type: ignore[call-arg, arg-type]
    with pytest.raises(TypeError, match="tiemout"):
        client.session(tiemout=1, limits=5)  # type: ignore[call-arg, arg-type]
    with pytest.raises(InvalidExecution, match="tiemout"):
        list(client.run_many([{"code": "1", "tiemout": 1}]))


# ---- what comes back


#: Every field has a value that it does not have by itself.
WHOLE = Outcome(
    id="x_9",
    language="python",
    status=Status.FAILED,
    exit_code=1,
    signal="SIGKILL",
    stdout="a\u2028b\r\n",
    stderr="…",
    stdout_cut=True,
    stderr_cut=True,
    error=ProgramError(type="NameError", message="no", traceback=("one", "two")),
    displays=(
        Display(mime="image/png", content=b"\x89PNG"),
        Display(mime="text/plain", content="ü".encode(), bundle=2, is_result=True),
        Display(mime="image/svg+xml", content=b"<svg/>", bundle=3),
        Display(mime="application/json", content=b"{}"),
    ),
    artifacts=(File(path="out/a", content=b"\x00"),),
    compilation=Compilation(
        status=Status.FAILED, exit_code=1, stdout="note", stderr="main.c:1: no", wall_seconds=0.5, was_cached=True
    ),
    tool_calls=(ToolCall(tool="add", ok=True, seconds=0.25), ToolCall(tool="fail", ok=False, seconds=0.125)),
    coverage=CoverageReport(
        percent=50.0,
        files=(
            FileCoverage(path="main.py", percent=62.5, executed=(1, 2), missing=(3,), missing_branches=((1, 3),)),
            FileCoverage(path="other.py", percent=0.0, executed=(), missing=(1,)),
        ),
    ),
    usage=Usage(
        wall_seconds=1.5,
        cpu_seconds=0.25,
        memory_peak_bytes=7,
        queue_seconds=0.125,
        network=NetworkUse(connections=1, refused=2, sent_bytes=3, received_bytes=4),
    ),
    cell=3,
)


def test_the_whole_outcome_is_whole() -> None:
    for part in (WHOLE, WHOLE.usage, WHOLE.compilation, WHOLE.coverage, WHOLE.error):
        assert dataclasses.is_dataclass(part)
        for each in dataclasses.fields(part):
            assert getattr(part, each.name) not in (None, (), "", 0, False), each.name


def test_an_outcome_has_the_shapes_of_the_contract(server: Any, client: Client) -> None:
    server.script = [server.reply(200, WHOLE.as_json() | {"of_tomorrow": 1})]
    assert client.execute("1") == WHOLE


def test_a_result_of_a_batch_has_the_whole_outcome(server: Any, client: Client) -> None:
    result = {"event": "result", "index": 0, **WHOLE.as_json()}
    server.script = [server.stream([result, {"event": "finished", "passed": 0, "failed": 1}])]
    (answer,) = client.batch(["1"]).results
    assert answer.outcome == WHOLE


def test_a_stream_has_every_event_and_the_whole_outcome(server: Any, client: Client) -> None:
    events: list[Event] = [
        Started(id="x_9"),
        Output(stream="stdout", text=WHOLE.stdout),
        ToolCalled(number=1, tool="add", arguments={"a": [1, {"b": None}]}),
        Output(stream="stderr", text=WHOLE.stderr),
        ToolAnswered(number=1, call=WHOLE.tool_calls[0], result={"sum": 3}),
        ToolCalled(number=2, tool="fail", arguments={}),
        ToolAnswered(number=2, call=WHOLE.tool_calls[1], result="no luck today"),
        *WHOLE.displays,
        Finished(outcome=WHOLE),
    ]
    server.script = [server.stream([describe(event) for event in events])]
    assert list(client.stream("1")) == events


def test_events_have_the_shapes_of_the_contract(server: Any, client: Client, body: Any) -> None:
    finished = {key: value for key, value in body().items() if key not in ("stdout", "stderr", "displays")}
    events = [
        {"event": "started", "id": "x_1"},
        {"event": "stdout", "text": "a\u2028"},
        {"event": "of_tomorrow", "text": "passed over"},
        {"event": "display", "mime": "image/png", "data": base64.b64encode(b"png").decode()},
        {"event": "stderr", "text": "e"},
        {"event": "stdout", "text": "b"},
        {"event": "finished", **finished},
    ]
    # Cut where it hurts: inside characters and lines, with the separators that only look like line ends unescaped.
    wire = b"".join(json.dumps(event, ensure_ascii=False).encode() + b"\n" for event in events)
    server.script = [server.stream([wire[at : at + 7] for at in range(0, len(wire), 7)])]
    *before, last = list(client.stream("1"))
    picture = Display(mime="image/png", content=b"png")
    assert before == [
        Started(id="x_1"),
        Output(stream="stdout", text="a\u2028"),
        picture,
        Output(stream="stderr", text="e"),
        Output(stream="stdout", text="b"),
    ]
    assert isinstance(last, Finished)
    assert (last.outcome.stdout, last.outcome.stderr, last.outcome.displays) == ("a\u2028b", "e", (picture,))
    assert server.seen[0].headers["accept"] == "application/x-ndjson"


def test_events_arrive_while_the_program_runs(server: Any, client: Client) -> None:
    server.script = [server.stream([{"event": "stdout", "text": "early"}], then=server.wait_for_hang_up())]
    with contextlib.closing(client.stream("1", timeout=30)) as events:
        assert next(events) == Output(stream="stdout", text="early")
    assert server.is_idle()


def test_an_abandoned_stream_hangs_up_in_an_event_loop_too(server: Any) -> None:
    server.script = [server.stream([{"event": "stdout", "text": "early"}], then=server.wait_for_hang_up())]

    async def abandon() -> None:
        async with AsyncClient(server.url) as client, contextlib.aclosing(client.stream("1", timeout=30)) as events:
            assert await anext(events) == Output(stream="stdout", text="early")

    asyncio.run(abandon())
    assert server.is_idle()


def test_cancelling_an_execution_hangs_up(server: Any) -> None:
    server.script = [server.wait_for_hang_up()]

    async def give_up() -> None:
        async with AsyncClient(server.url) as client:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(client.execute("1", timeout=30), 0.3)

    asyncio.run(give_up())
    assert server.is_idle()


# ---- what breaks


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param([], id="nothing"),
        pytest.param([{"event": "started", "id": "x"}], id="without_an_end"),
        pytest.param([b'{"event": "finished", "id"'], id="half_a_line"),
        pytest.param([b"<html>\n"], id="no_json"),
        pytest.param([b"[1]\n"], id="no_object"),
        pytest.param([b"[" * 100_000 + b"\n"], id="a_nesting_bomb"),
        pytest.param([{"event": "finished", "id": "x"}], id="an_end_without_an_outcome"),
        pytest.param([{"event": "stdout", "text": 5}], id="a_number_for_text"),
        pytest.param([{"event": "tool_call", "number": 1, "tool": "a", "arguments": []}], id="arguments_without_names"),
        pytest.param([{"event": "tool_result", "number": 1, "tool": "a"}], id="a_call_without_an_answer"),
        pytest.param([{"event": "display", "mime": "image/png", "data": "%"}], id="no_base64"),
    ],
)
def test_a_broken_stream_is_an_answer_lost(server: Any, client: Client, lines: list[object]) -> None:
    server.script = [server.stream(lines)]
    with pytest.raises(AnswerLost):
        list(client.stream("1"))


def test_a_stream_that_is_cut_is_an_answer_lost(server: Any, client: Client) -> None:
    server.script = [server.stream([{"event": "stdout", "text": "a"}], then=server.hang_up())]
    events = client.stream("1")
    assert next(events) == Output(stream="stdout", text="a")
    with pytest.raises(AnswerLost, match="may have run"):
        next(events)
    assert len(server.seen) == 1


@pytest.mark.parametrize("kind", ["blocking", "asynchronous"])
def test_what_breaks_after_the_last_line_is_no_loss(server: Any, body: Any, kind: str) -> None:
    async def in_a_loop() -> tuple[list[Event], int]:
        async with AsyncClient(server.url, retries=ONCE) as client:
            return [event async for event in client.stream("1")], (await client.batch(["1"])).passed

    def here() -> tuple[list[Event], int]:
        with Client(server.url, retries=ONCE) as client:
            return list(client.stream("1")), client.batch(["1"]).passed

    result = {"event": "result", "index": 0, **body()}
    server.script = [
        server.stream([{"event": "finished", **body()}], then=server.hang_up()),
        server.stream([result, {"event": "finished", "passed": 1, "failed": 0}], then=server.hang_up()),
    ]
    events, passed = here() if kind == "blocking" else asyncio.run(in_a_loop())
    assert [type(event) for event in events] == [Finished]
    assert passed == 1


def test_an_error_in_a_stream_is_raised(server: Any, client: Client) -> None:
    told = {"event": "error", "error": {"code": "zygote_died", "message": "gone", "details": {}}}
    server.script = [server.stream([told])]
    with pytest.raises(SandboxFault, match="gone"):
        list(client.stream("1"))


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"<html>hello</html>", id="html"),
        pytest.param(b"{}", id="an_empty_object"),
        pytest.param(b"[]", id="a_list"),
        pytest.param(b"null", id="null"),
        pytest.param(b"\xff", id="no_unicode"),
        pytest.param(b"[" * 100_000, id="a_nesting_bomb"),
    ],
)
def test_garbage_is_an_answer_lost(server: Any, client: Client, content: bytes) -> None:
    server.script = [server.reply(200, content)]
    with pytest.raises(AnswerLost, match="is the URL right"):
        client.execute("1")
    for ask in (client.languages, client.environments, client.info):
        with pytest.raises(AnswerLost, match="is the URL right"):
            ask()


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"exit_code": float("inf")}, id="an_endless_number"),
        pytest.param({"compile": {"status": "ok"}}, id="half_a_compilation"),
        pytest.param({"tool_calls": [{"tool": 5, "ok": True, "seconds": 1}]}, id="a_tool_without_a_name"),
        pytest.param({"usage": {}}, id="nothing_used"),
    ],
)
def test_an_outcome_that_makes_no_sense_is_an_answer_lost(server: Any, client: Client, changed: Any) -> None:
    server.script = [server.outcome(**changed)]
    with pytest.raises(AnswerLost, match="is the URL right"):
        client.execute("1")


def test_an_unknown_status_word_asks_for_a_newer_version(server: Any, client: Client) -> None:
    server.script = [server.outcome(status="enlightened")]
    with pytest.raises(AnswerLost, match="version"):
        client.execute("1")


@pytest.mark.parametrize("content", [b"", b"{}", b'{"error": 1}', b'{"error": {"code": 1}}', b"[" * 100_000])
def test_a_garbled_error_is_reported_by_its_status(server: Any, client: Client, content: bytes) -> None:
    server.script = [server.reply(404, content)]
    with pytest.raises(CallerError, match="404"):
        client.execute("1")


def test_a_redirect_is_named(server: Any, client: Client) -> None:
    server.script = [server.reply(301, b"", Location="https://elsewhere.test/")]
    with pytest.raises(CallerError, match=r"301 to https://elsewhere\.test/"):
        client.execute("1")


def test_an_error_keeps_its_words(server: Any, client: Client) -> None:
    server.script = [server.refuse(422, "unknown_language", "no cobol", {"languages": ["python"], "message": "x"})]
    with pytest.raises(UnknownLanguage, match="no cobol") as caught:
        client.execute("1")
    assert caught.value.details == {"languages": ["python"], "message": "x", "http_status": 422}
    server.script = [server.refuse(401, "unauthorized", "no key")]
    with pytest.raises(CallerError, match="no key") as unknown:
        client.execute("1")
    assert unknown.value.code == "unauthorized"
    assert CallerError.code == "invalid_request"


def test_a_silent_server_is_given_up_only_after_the_programs_own_limit(server: Any, client: Client) -> None:
    """The room is half a second here: shorter than the program, which would otherwise be given up."""
    release = threading.Event()

    def slow(exchange: Any) -> None:
        release.wait(1.0)  # what the program takes
        server.outcome()(exchange)

    server.script = [slow]
    assert client.execute("1", timeout=5).ok
    assert client.execute("1", limits={"wall_seconds": 5}).ok
    assert client.execute("1").ok  # no limit named: the server's own may be long
    server.script = [server.wait_for_hang_up()]
    with pytest.raises(AnswerLost, match=r"silent for 0\.6 seconds"):
        client.execute("1", timeout=0.1)
    assert server.is_idle()


# ---- many


def test_many_keep_their_order_and_their_bound(server: Any, client: Client) -> None:
    programs = [str(number) for number in range(40)]
    assert len(list(client.run_many(programs, max_in_flight=4))) == 40
    assert sorted(int(seen.body["code"]) for seen in server.seen) == list(range(40))
    assert 1 <= server.most_running <= 4


@pytest.mark.parametrize("kind", ["blocking", "asynchronous"])
def test_many_come_back_in_order_however_they_finish(server: Any, kind: str) -> None:
    """The first program is answered last, and each answer says whose it is."""
    others = threading.Semaphore(0)

    class Echo:
        def __call__(self, exchange: Any) -> None:
            with server.lock:
                body = next(seen.body for seen in server.seen if seen.body.get("mine") is None)
                body["mine"] = True
            if body["code"] == "0":
                for _ in range(5):
                    assert others.acquire(timeout=20)
            else:
                others.release()
            server.outcome(stdout=body["code"])(exchange)

    server.script = [Echo()]
    programs = [str(number) for number in range(6)]

    async def in_a_loop() -> list[str]:
        async with AsyncClient(server.url) as client:
            return [outcome.stdout async for outcome in client.run_many(programs, max_in_flight=6)]

    if kind == "asynchronous":
        assert asyncio.run(in_a_loop()) == programs
    else:
        with Client(server.url) as client:
            assert [outcome.stdout for outcome in client.run_many(programs, max_in_flight=6)] == programs


def test_leaving_many_early_hangs_up_on_all_of_them(server: Any, client: Client) -> None:
    server.script = [*[server.outcome()] * 3, server.wait_for_hang_up()]  # whichever of the first three comes first
    outcomes = client.run_many(({"code": "1", "timeout": 30} for _ in range(100)), max_in_flight=3)
    assert next(outcomes).ok
    outcomes.close()
    assert server.is_idle()
    assert len(server.seen) < 100


def test_an_error_ends_many_or_takes_its_place(server: Any, client: Client) -> None:
    server.script = [server.outcome(), server.refuse(429, "queue_full"), server.outcome()]
    kept = list(client.run_many(["1", "2", "3"], max_in_flight=1, return_exceptions=True))
    assert [isinstance(each, QueueFull) for each in kept] == [False, True, False]
    server.script = [server.refuse(429, "queue_full")]
    with pytest.raises(QueueFull):
        list(client.run_many(["1"]))
    with pytest.raises(InvalidExecution, match="at least 1"):
        list(client.run_many(["1"], max_in_flight=0))
    with pytest.raises(InvalidExecution, match="'code'"):
        list(client.run_many([{"language": "python"}]))


def test_a_bar_counts_to_the_end_on_standard_error(server: Any, client: Client, capfd: Any) -> None:
    assert len(list(client.run_many(["1", "2", "3"], progress=True))) == 3
    printed = capfd.readouterr()
    assert "3/3" in printed.err
    assert not printed.out


def test_many_from_an_endless_source(server: Any, client: Client) -> None:
    def forever() -> Any:
        while True:
            yield "1"

    with contextlib.closing(client.run_many(forever(), max_in_flight=2)) as outcomes:
        assert [next(outcomes).ok for _ in range(5)] == [True] * 5


def test_an_interpreter_that_exits_in_the_middle_does_not_hang(server: Any, sources: Path) -> None:
    server.script = [server.outcome(), server.wait_for_hang_up()]
    code = (
        "import sys; from belljar.client import Client\n"
        "many = Client(sys.argv[1]).run_many(['1'] * 9, max_in_flight=1)\n"  # else any of them may get the outcome
        "next(many)"
    )
    subprocess.run([sys.executable, "-c", code, server.url], env={"PYTHONPATH": str(sources)}, timeout=60, check=True)


# ---- batches and the rest


def test_programs_of_their_own_go_in_one_request(server: Any, client: Client, body: Any) -> None:
    fault = {"code": "zygote_died", "message": "gone", "details": {}}
    lines = [
        {"event": "result", "index": 1, "error": fault, "verdict": "not_run"},
        {"event": "result", "index": 0, **body()},
        {"event": "finished", "passed": 1, "failed": 1},
    ]
    server.script = [server.stream(lines)]
    answer = client.batch(["1", {"code": "2", "timeout": 1}])
    assert server.seen[0].body == {"executions": [{"code": "1"}, {"code": "2", "timeout": 1}]}
    good, bad = answer.results
    assert (good.passed, good.verdict, bad.passed, bad.verdict, bad.outcome) == (True, None, False, "not_run", None)
    assert isinstance(bad.error, ZygoteDied)


def test_one_program_against_cases(server: Any, client: Client, body: Any) -> None:
    lines = [
        {"event": "result", "index": at, **body(verdict=word)} for at, word in enumerate(("passed", "wrong_answer"))
    ]
    server.script = [server.stream([*lines, {"event": "finished", "passed": 1, "failed": 1}])]
    cases: list[Any] = [Case(stdin="1", expected_stdout="1\n"), {"args": ["x"]}]
    answer = client.batch("code", cases=cases, compare="tokens", stop_on_failure=True, timeout=2)
    assert server.seen[0].body == {
        "code": "code",
        "timeout": 2,
        "cases": [{"stdin": "1", "expected_stdout": "1\n"}, {"args": ["x"]}],
        "compare": "tokens",
        "stop_on_failure": True,
    }
    assert [(each.passed, each.verdict) for each in answer.results] == [(True, "passed"), (False, "wrong_answer")]
    assert (answer.passed, answer.failed) == (1, 1)


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param([], id="nothing"),
        pytest.param([{"event": "result", "index": 0}], id="without_an_end"),
        pytest.param([{"event": "result"}], id="without_an_index"),
        pytest.param(
            [{"event": "result", "index": 1}, {"event": "finished", "passed": 0, "failed": 1}], id="with_a_gap"
        ),
        pytest.param([{"event": "finished"}], id="without_counts"),
        pytest.param(
            [{"event": "result", "index": 0}, {"event": "finished", "passed": 0, "failed": 1}], id="with_too_few"
        ),
        pytest.param(
            [
                *({"event": "result", "index": at} for at in range(3)),
                {"event": "finished", "passed": 0, "failed": 3},
            ],
            id="with_too_many",
        ),
    ],
)
def test_a_broken_batch_is_an_answer_lost(server: Any, client: Client, lines: list[object]) -> None:
    server.script = [server.stream(lines)]
    with pytest.raises(AnswerLost):
        client.batch(["1", "2"])


def test_the_two_forms_of_a_batch_do_not_mix(client: Client) -> None:
    with pytest.raises(InvalidExecution, match="needs cases"):
        client.batch("code")
    with pytest.raises(InvalidExecution, match="each program carries its own"):
        client.batch(["code"], cases=[Case()])  # type: ignore[call-overload]
    with pytest.raises(InvalidExecution, match="each program carries its own"):
        client.batch(["code"], timeout=1)  # type: ignore[call-overload]


def test_a_server_that_cannot_run_programs_says_so(server: Any, client: Client) -> None:
    server.script = [
        server.reply(503, {"status": "stuck"}),
        server.refuse(503, "draining"),
        server.reply(200, {"status": "ok"}),
    ]
    assert [(health.ok, health.status) for health in (client.health(), client.health(), client.health())] == [
        (False, "stuck"),
        (False, "draining"),
        (True, "ok"),
    ]


# ---- how a client is made


@pytest.mark.parametrize("url", ["", "localhost:8000", "ftp://host", "http://", "http://h:99999"])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(CallerError):
        Client(url)


@pytest.mark.parametrize("key", ["a\nb", "ключ", "\x00"])
def test_a_key_that_no_header_can_carry_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(CallerError) as caught:
        Client(api_key=key)
    assert key not in str(caught.value)


@pytest.mark.parametrize("value", ["ü", 5])
def test_a_header_that_cannot_be_sent_is_refused(value: Any) -> None:
    with pytest.raises(CallerError, match="header"):
        Client(headers={"X-Team": value})


def test_a_key_is_never_shown(client: Client) -> None:
    assert "secret" not in repr(client) + repr(vars(client))
    assert "secret" not in repr(Client("http://user:secret@host"))


def test_a_client_can_come_from_the_environment(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BELLJAR_URL", server.url)
    monkeypatch.setenv("BELLJAR_API_KEY", "bj_env")
    with Client.from_env(retries=ONCE) as client:
        client.execute("1")
    assert server.seen[0].headers["authorization"] == "Bearer bj_env"


def test_a_path_in_the_url_is_kept(server: Any) -> None:
    with Client(server.url + "/behind/a/proxy/") as client:
        client.execute("1")
    assert server.seen[0].path == "/behind/a/proxy/v1/execute"


def test_a_closed_client_says_so(client: Client) -> None:
    client.close()
    for use in (lambda: client.execute("1"), lambda: list(client.stream("1")), lambda: list(client.run_many(["1"]))):
        with pytest.raises(CallerError, match="closed"):
            use()


def test_a_client_in_a_loop_says_so_too(server: Any) -> None:
    async def use() -> None:
        client = AsyncClient(server.url)
        await client.close()
        with pytest.raises(CallerError, match="closed"):
            await client.execute("1")

    asyncio.run(use())


def test_a_client_of_another_event_loop_says_so(server: Any) -> None:
    client = AsyncClient(server.url)

    async def once() -> None:
        await client.execute("1")
        await client.close()

    async def again() -> None:
        with pytest.raises(CallerError, match="another event loop"):
            await client.execute("1")

    with asyncio.Runner() as first, asyncio.Runner() as second:
        first.run(client.execute("1"))
        second.run(again())
        first.run(once())
    assert len(server.seen) == 2


def test_a_forked_child_has_connections_of_its_own(server: Any, sources: Path) -> None:
    """On one connection, parent and child would read each other's answers."""
    peers: dict[str, int] = {}

    def answer(exchange: Any) -> None:
        peers[server.seen[-1].body["code"]] = exchange.client_address[1]
        server.outcome()(exchange)

    server.script = [answer]
    code = """
import os, sys
from belljar.client import Client
client = Client(sys.argv[1])
client.execute("before")
if os.fork() == 0:
    client.execute("child")
    os._exit(0)
assert os.wait()[1] == 0
client.execute("after")
"""
    subprocess.run([sys.executable, "-c", code, server.url], env={"PYTHONPATH": str(sources)}, timeout=60, check=True)
    assert peers.keys() == {"before", "child", "after"}
    assert peers["child"] != peers["before"]


@pytest.mark.parametrize(
    "use",
    [
        pytest.param("client.execute('1', timeout=60)", id="execute"),
        pytest.param("list(client.stream('1', timeout=60))", id="stream"),
        pytest.param("list(client.run_many([{'code': '1', 'timeout': 60}] * 9))", id="many"),
        pytest.param("list(client.run_many([{'code': '1'}] * 500, max_in_flight=500))", id="many_as_they_start"),
    ],
)
def test_an_interrupt_hangs_up(server: Any, sources: Path, use: str) -> None:
    server.script = [server.wait_for_hang_up()]
    code = f"import sys; from belljar.client import Client\nclient = Client(sys.argv[1]); {use}"
    command = [sys.executable, "-c", code, server.url]
    with subprocess.Popen(command, env={"PYTHONPATH": str(sources)}, stderr=subprocess.PIPE) as process:
        with server.lock:
            assert server.lock.wait_for(lambda: server.running, 60)
        process.send_signal(signal.SIGINT)
        try:
            _, said = process.communicate(timeout=25)  # the server waits longer
        finally:
            process.kill()
    assert said.rstrip().endswith(b"KeyboardInterrupt")
    assert server.is_idle()


def test_without_httpx_it_says_what_to_install(sources: Path) -> None:
    code = "import belljar.client as c\ntry: c.Client()\nexcept ImportError as error: print(error)"
    command = [sys.executable, "-S", "-c", code]
    said = subprocess.run(command, env={"PYTHONPATH": str(sources)}, capture_output=True, text=True, check=True)
    assert "pip install 'belljar[client]'" in said.stdout
