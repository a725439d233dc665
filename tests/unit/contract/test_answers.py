"""The JSON that the contract's values write has the types that /openapi.json is generated from."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest

from belljar.contract import answers
from belljar.contract.execution import (
    LIMIT_UNITS,
    Compilation,
    CoverageReport,
    Display,
    FileCoverage,
    Limits,
    NetworkUse,
    Outcome,
    ProgramError,
    Status,
    ToolCall,
    Usage,
)
from belljar.contract.files import File
from belljar.contract.sessions import SessionState

PLAIN = Outcome(
    id="x_1",
    language="python",
    status=Status.OK,
    exit_code=0,
    signal=None,
    stdout="",
    stderr="",
    stdout_cut=False,
    stderr_cut=False,
    error=None,
    displays=(),
    artifacts=(),
    usage=Usage(),
)
FULL = dataclasses.replace(
    PLAIN,
    error=ProgramError(type="E", message="m", traceback=("a", "b")),
    displays=(Display(mime="text/plain", content=b"1", bundle=1, is_result=True), Display(mime="x/y", content=b"1")),
    artifacts=(File(path="a", content=b"x"),),
    compilation=Compilation(status=Status.OK, exit_code=0, stdout="", stderr="", wall_seconds=0.1),
    tool_calls=(ToolCall(tool="t", ok=True, seconds=0.5),),
    coverage=CoverageReport(
        percent=50.0,
        files=(FileCoverage(path="a", percent=50.0, executed=(1,), missing=(2,), missing_branches=((1, 2),)),),
    ),
    usage=Usage(network=NetworkUse()),
)
SESSION = SessionState(
    id="s",
    language="python",
    environment="default",
    is_busy=False,
    cells=0,
    memory_bytes=0,
    created_at=0.0,
    last_used_at=0.0,
    expires_at=0.0,
    parent=None,
    limits=Limits(),
)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        pytest.param(PLAIN.as_json(), answers.Outcome, id="plain"),
        pytest.param(FULL.as_json(), answers.Outcome, id="full"),
        pytest.param(dataclasses.replace(FULL, cell=3).as_json(), answers.CellOutcome, id="cell"),
        pytest.param(SESSION.as_json(), answers.Session, id="session"),
    ],
)
def test_values_are_written_as_declared(value: dict[str, Any], kind: type) -> None:
    written = msgspec.json.decode(msgspec.json.encode(value))
    read = msgspec.json.decode(msgspec.json.encode(value), type=kind)
    assert msgspec.to_builtins(read) == written  # only declared fields may be omitted


def test_every_limit_is_answered_and_read_back() -> None:
    limits = Limits(wall_seconds=1.5, memory_bytes=3 << 19, processes=7)
    assert limits.as_json().keys() == LIMIT_UNITS.keys() == answers.Limits.__annotations__.keys()
    assert limits.as_json()["memory_mb"] == 1.5
    assert Limits.from_json(limits.as_json()) == limits
