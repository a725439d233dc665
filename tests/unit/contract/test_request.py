"""The fields of a request are the same in Python, on the wire and in the keywords of a Sandbox."""

from __future__ import annotations

from typing import get_type_hints

import pytest

from belljar.contract.execution import LIMIT_UNITS
from belljar.contract.request import (
    CellFields,
    CellOptions,
    CellRequest,
    ExecutionFields,
    ExecutionRequest,
    SessionFields,
    SessionRequest,
)
from belljar.frontends.api.bodies import CellBody, ExecuteBody, LimitsBody, SessionBody
from belljar.frontends.embedded.sandbox import RunOptions
from belljar.frontends.embedded.sessions import SessionOptions


@pytest.mark.parametrize(
    ("fields", "body", "python_only", "wire_only"),
    [
        pytest.param(ExecutionFields, ExecuteBody, {"memory_mb"}, set(), id="program"),
        pytest.param(SessionFields, SessionBody, {"memory_mb", "timeout"}, set(), id="session"),
        pytest.param(CellFields, CellBody, set(), {"wait"}, id="cell"),
    ],
)
def test_a_body_has_the_fields_of_a_request(
    fields: type, body: type[ExecuteBody], python_only: set[str], wire_only: set[str]
) -> None:
    assert set(body.__struct_fields__) - wire_only == get_type_hints(fields).keys() - python_only


@pytest.mark.parametrize(
    ("fields", "keywords", "others"),
    [
        pytest.param(ExecutionFields, RunOptions, {"code"}, id="program"),
        pytest.param(SessionFields, SessionOptions, set(), id="session"),
        pytest.param(CellFields, CellOptions, {"code", "wait", "waits"}, id="cell"),
    ],
)
def test_keywords_are_the_fields(fields: type, keywords: type, others: set[str]) -> None:
    assert keywords.__annotations__.keys() - others == get_type_hints(fields).keys() - others


def test_limits_have_one_set_of_names() -> None:
    assert LimitsBody.__struct_fields__ == tuple(LIMIT_UNITS)


@pytest.mark.parametrize("make", [lambda: ExecutionRequest("1", codes=1), lambda: SessionRequest(ids=1)])
def test_a_misspelt_keyword_is_refused(make: object) -> None:
    assert callable(make)
    with pytest.raises(TypeError, match="unexpected keyword"):
        make()


def test_omitted_fields_have_defaults() -> None:
    request = CellRequest("1", timeout=3)
    assert (request.code, request.timeout, request.limits, request.artifacts) == ("1", 3, None, ())
