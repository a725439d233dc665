"""The host checks a guest's coverage report, and drops what is impossible."""

from __future__ import annotations

import json
from typing import Any

import pytest

from belljar.backends.local.features.coverage import read_report
from belljar.contract.execution import Coverage

LINES = {"main.py": 10, "helper.py": 5}
GOOD = {"path": "main.py", "executed": [1, 2, 3], "missing": [4]}
BRANCHED = {**GOOD, "branches": 4, "missing_branches": [[2, 4]]}


def read(report_of_guest: Any, branch: bool = False) -> Any:
    return read_report(json.dumps(report_of_guest).encode(), LINES, Coverage(branch=branch))


def test_percentages_are_computed_by_the_host() -> None:
    report = read([{**GOOD, "percent": 100}, {"path": "helper.py", "executed": [], "missing": [1, 2, 3, 4]}])
    assert [file.percent for file in report.files] == [75.0, 0.0]
    assert report.percent == 37.5


def test_branches_count_like_lines() -> None:
    report = read([BRANCHED], branch=True)
    assert report.percent == 75.0  # three of four lines, three of four branches
    assert report.files[0].missing_branches == ((2, 4),)
    assert report.as_json()["files"][0]["missing_branches"] == [(2, 4)]


def test_an_empty_program_is_fully_covered() -> None:
    assert read([{"path": "main.py", "executed": [], "missing": []}]).percent == 100.0


@pytest.mark.parametrize(
    "report_of_guest",
    [
        pytest.param({}, id="no_list"),
        pytest.param([], id="no_file"),
        pytest.param([GOOD, GOOD], id="a_file_twice"),
        pytest.param([{**GOOD, "path": "../etc/passwd"}], id="a_file_outside"),
        pytest.param([{**GOOD, "path": ["main.py"]}], id="a_path_that_is_not_text"),
        pytest.param([{"path": "main.py", "executed": [1]}], id="a_part_missing"),
        pytest.param([{**GOOD, "executed": "123"}], id="text_for_lines"),
        pytest.param([{**GOOD, "executed": [True]}], id="a_boolean_line"),
        pytest.param([{**GOOD, "executed": [1.0]}], id="a_fractional_line"),
        pytest.param([{**GOOD, "executed": [0]}], id="line_zero"),
        pytest.param([{**GOOD, "executed": [-1]}], id="a_negative_line"),
        pytest.param([{**GOOD, "executed": [11]}], id="a_line_past_the_end"),
        pytest.param([{**GOOD, "executed": [2, 2]}], id="a_line_twice"),
        pytest.param([{**GOOD, "executed": [3, 2]}], id="lines_out_of_order"),
        pytest.param([{**GOOD, "executed": [4]}], id="a_line_both_executed_and_missing"),
        pytest.param([{**GOOD, "executed": [10**400]}], id="a_huge_number"),
        pytest.param(["main.py"], id="text_for_a_file"),
        pytest.param([None], id="null_for_a_file"),
    ],
)
def test_an_impossible_report_is_dropped(report_of_guest: Any) -> None:
    assert read(report_of_guest) is None


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"branches": -1}, id="negative_branches"),
        pytest.param({"branches": 0}, id="more_missing_than_exist"),
        pytest.param({"missing_branches": [[1]]}, id="half_a_branch"),
        pytest.param({"missing_branches": [[1, 99]]}, id="a_branch_to_outside_the_file"),
        pytest.param({"missing_branches": [["1", 2]]}, id="text_in_a_branch"),
        pytest.param({"missing_branches": 7}, id="a_number_for_branches"),
        pytest.param({"missing_branches": None}, id="no_list_of_branches"),
        pytest.param({"branches": None}, id="no_number_of_branches"),
        pytest.param({"missing_branches": [[2, 4], [2, 4]]}, id="a_branch_twice"),
        pytest.param({"missing_branches": [[2, 4], [2, 3]]}, id="branches_out_of_order"),
        pytest.param({"missing_branches": [[2, 3, 4]]}, id="a_branch_with_three_ends"),
        pytest.param({"missing_branches": [[-11, 2]]}, id="a_branch_from_before_the_file"),
        pytest.param({"missing_branches": [[11, 2]]}, id="a_branch_from_behind_the_file"),
        pytest.param({"branches": 81}, id="more_branches_than_lines_can_have"),
    ],
)
def test_impossible_branches_are_dropped(changed: dict[str, Any]) -> None:
    assert read([{**BRANCHED, **changed}], branch=True) is None


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff\xfe", b"[" * 200_000, b'{"path": ', b"NaN", b"[1e999]"],
    ids=["nothing", "no_text", "nesting_bomb", "half", "nan", "infinity"],
)
def test_a_malformed_report_is_dropped(content: bytes) -> None:
    assert read_report(content, LINES, Coverage()) is None
