"""Coverage over the wire."""

from __future__ import annotations

import json
from typing import Any

import pytest

from belljar.client import Client

CODE = "import sys\nif len(sys.argv) > 1:\n    print('some')\nelse:\n    print('none')\n"


@pytest.mark.parametrize(
    ("coverage", "expected"),
    [
        pytest.param(True, {"percent": 75.0, "missing": [3]}, id="lines"),
        pytest.param({}, {"percent": 75.0, "missing": [3]}, id="defaults"),
        pytest.param({"branch": True}, {"percent": 66.67, "missing": [3], "missing_branches": [[2, 3]]}, id="branches"),
    ],
)
def test_lines_hit_and_missed(server: Any, coverage: Any, expected: dict[str, Any]) -> None:
    answer = server.execute(CODE, coverage=coverage)
    assert answer.status == 200
    percent = expected["percent"]
    file = {"path": "main.py", "executed": [1, 2, 5], **expected}
    assert answer.body["coverage"] == {"percent": percent, "files": [file]}
    assert answer.body["stdout"] == "none\n"


def test_last_event_of_a_stream_has_it(server: Any) -> None:
    with server.streaming(CODE, coverage=True, args=["x"]) as response:
        events = [json.loads(line) for line in response]
    assert events[-1]["coverage"]["files"][0]["missing"] == [5]


def test_each_case_of_a_batch_has_its_own(server: Any) -> None:
    body = {"code": CODE, "coverage": True, "cases": [{"args": []}, {"args": ["x"]}]}
    results = server.ask("POST", "/v1/batch", body).body["results"]
    assert [result["coverage"]["files"][0]["missing"] for result in results] == [[3], [5]]


def test_client_reads_it(server: Any) -> None:
    with Client(f"http://{server.host}") as client:
        report = client.run(CODE, coverage={"branch": True}).coverage
    assert report is not None
    assert (report.percent, report.files[0].missing, report.files[0].missing_branches) == (66.67, (3,), ((2, 3),))


def test_other_kinds_are_refused_by_name(server: Any) -> None:
    answer = server.execute(CODE, coverage={"branches": True})
    assert (answer.status, answer.body["error"]["details"]["field"]) == (422, "coverage.branches")
