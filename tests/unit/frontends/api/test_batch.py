"""POST /v1/batch: many programs, or one against many cases."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from api_server import JSON, Server

ADD = "a, b = map(int, input().split())\nprint(a + b)"


def post(server: Server, **asked: Any) -> Any:
    answer = server.ask("POST", "/v1/batch", asked)
    assert answer.status == 200, answer.body
    return answer.body


def test_executions_are_answered_in_order(server: Server) -> None:
    programs = [{"code": f"import time; time.sleep({0.2 if at == 0 else 0}); print({at})"} for at in range(12)]
    body = post(server, executions=[*programs, {"code": "1/0"}])
    assert set(body) == {"results", "passed", "failed"}
    assert [result["stdout"] for result in body["results"]] == [*(f"{at}\n" for at in range(12)), ""]
    assert (body["passed"], body["failed"]) == (12, 1)
    assert body["results"][12]["error"]["type"] == "ZeroDivisionError"


def test_executions_of_a_lone_batch_do_not_wait_for_each_other(server: Server) -> None:
    """The task that frees a slot takes it again: waiting in line costs every execution a turn of the loop."""
    body = post(server, executions=[{"code": "pass"}] * 64)
    assert {result["usage"]["queue_seconds"] for result in body["results"]} == {0}


def test_cases_have_verdicts(server: Server) -> None:
    cases = [
        {"stdin": "1 2", "expected_stdout": "3\n"},
        {"stdin": "1 2", "expected_stdout": "4\n"},
        {"stdin": "x"},
        {"stdin": "5 5"},
    ]
    body = post(server, code=ADD, cases=cases)
    assert [result["verdict"] for result in body["results"]] == ["passed", "wrong_answer", "failed", "passed"]
    assert (body["passed"], body["failed"]) == (2, 2)


@pytest.mark.parametrize(
    ("compare", "expected", "verdict"),
    [
        ("exact", "1 2\n3\n", "passed"),
        ("exact", "1 2\n3", "wrong_answer"),
        ("trimmed", "\n1 2  \n3", "passed"),
        ("trimmed", "1  2\n3", "wrong_answer"),
        ("trimmed", "1 2\x0b3", "wrong_answer"),
        ("tokens", "1\n2 3", "passed"),
        ("tokens", "1 23", "wrong_answer"),
        (None, "1 2\n3", "wrong_answer"),
    ],
)
def test_ways_to_compare(server: Server, compare: str | None, expected: str, verdict: str) -> None:
    asked = {"compare": compare} if compare else {}
    body = post(server, code="print('1 2\\n3')", cases=[{"expected_stdout": expected}], **asked)
    assert body["results"][0]["verdict"] == verdict


def test_files_and_arguments_reach_every_case(server: Server) -> None:
    code = "import sys; print(open('f').read(), *sys.argv[1:])"
    body = post(
        server,
        code=code,
        files=[{"path": "f", "content": "data"}],
        args=["common"],
        cases=[{}, {"args": ["own"]}],
    )
    assert [result["stdout"] for result in body["results"]] == ["data common\n", "data own\n"]


def test_stop_on_failure_cancels_and_skips(server: Server) -> None:
    cases = [{"stdin": "0"}, *({"stdin": "60"} for _ in range(60))]
    body = post(
        server,
        code="import time; n = float(input()); time.sleep(n); 1/n",
        cases=cases,
        stop_on_failure=True,
        timeout=90,
    )
    verdicts = [result["verdict"] for result in body["results"]]
    assert verdicts[0] == "failed"
    assert set(verdicts[1:]) == {"cancelled", "skipped"}
    assert (body["passed"], body["failed"]) == (0, 1)
    assert {result["status"] for result in body["results"]} == {"failed", "cancelled"}


def test_ndjson_tells_each_when_it_is_there(server: Server) -> None:
    connection = server.connect()
    asked = {"executions": [{"code": f"import time; time.sleep({wait}); print({wait})"} for wait in (0.6, 0)]}
    connection.request("POST", "/v1/batch", json.dumps(asked), {**JSON, "Accept": "application/x-ndjson"})
    events = [json.loads(line) for line in connection.getresponse()]
    connection.close()
    assert [event["event"] for event in events] == ["result", "result", "finished"]
    assert [event["index"] for event in events[:2]] == [1, 0]
    assert events[0]["stdout"] == "0\n"
    assert events[2] == {"event": "finished", "passed": 2, "failed": 0}


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        pytest.param({}, "executions", id="nothing"),
        pytest.param({"executions": []}, "executions", id="empty"),
        pytest.param({"code": "1"}, "cases", id="no_cases"),
        pytest.param({"code": "1", "cases": []}, "cases", id="no_case"),
        pytest.param({"executions": [{"code": "1"}], "timeout": 1}, "timeout", id="both_forms"),
        pytest.param({"executions": [{"code": "1"}, {"code": " "}]}, "executions[1].code", id="second_is_blank"),
        pytest.param({"executions": [{"code": "1", "tmeout": 1}]}, "executions[0].tmeout", id="unknown_inner_field"),
        pytest.param({"code": "1", "cases": [{"expected": ""}]}, "cases[0].expected", id="unknown_field_of_a_case"),
        pytest.param({"code": "1", "cases": [{}, {"args": ["\0"]}]}, "cases[1].args[0]", id="second_case"),
        pytest.param({"code": "1", "cases": [{}], "compare": "fuzzy"}, "compare", id="unknown_comparison"),
    ],
)
def test_nothing_runs_when_something_is_wrong(server: Server, asked: Any, field: str) -> None:
    answer = server.ask("POST", "/v1/batch", asked)
    assert answer.status == 422
    assert answer.body["error"]["details"]["field"] == field


def test_one_that_cannot_be_run_spoils_no_other(server: Server) -> None:
    large = {"path": "large", "content": "x" * 1_500_000}
    refused = {"code": "print('never')", "files": [large], "limits": {"disk_mb": 1}}
    body = post(server, executions=[{"code": "print('fine')"}, refused])
    fine, other = body["results"]
    assert (fine["stdout"], body["passed"], body["failed"]) == ("fine\n", 1, 1)
    assert (other["verdict"], other["error"]["code"], "status" in other) == ("not_run", "invalid_execution", False)


def test_cases_that_leave_too_many_files_have_their_verdicts(server: Server) -> None:
    code = "for at in range(int(input())): open(f'f{at}', 'w').close()"
    body = post(server, code=code, artifacts=["f*"], cases=[{"stdin": "1001"}, {"stdin": "1"}])
    assert [result["verdict"] for result in body["results"]] == ["passed", "passed"]
    assert [len(result["artifacts"]) for result in body["results"]] == [1000, 1]
    assert "1001 files match" in body["results"][0]["stderr"]


def test_an_answer_that_was_cut_is_not_called_wrong(server: Server) -> None:
    cases = [{"stdin": "x", "expected_stdout": "x" * 5000 + "\n"}, {"stdin": "y", "expected_stdout": "x" * 5000 + "\n"}]
    body = post(server, code="print(input() * 5000)", limits={"output_kb": 1}, cases=cases)
    assert [result["verdict"] for result in body["results"]] == ["output_limit", "wrong_answer"]


def test_cases_of_one_program_are_compiled_once(server: Server) -> None:
    program = (
        '#include <stdio.h>\nint main(void) { int a, b; scanf("%d %d", &a, &b); printf("%d\\n", a + b); return 0; }'
        f"/* {time.time_ns()} */"
    )
    cases = [{"stdin": f"{n} 1", "expected_stdout": f"{n + 1}\n"} for n in range(10)]
    body = post(server, code=program, language="c", cases=cases)
    assert body["passed"] == 10
    assert [result["compile"]["cached"] for result in body["results"]].count(False) == 1
    broken = post(server, code=program.replace("return 0", "return x"), language="c", cases=cases)
    assert {result["verdict"] for result in broken["results"]} == {"compile_failed"}
    assert [result["compile"]["cached"] for result in broken["results"]].count(False) == 1
