"""The `restrict` field of a request, and the restriction it becomes."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from belljar.contract.errors import CallerError
from belljar.contract.request import ExecutionRequest
from belljar.contract.restriction import Restriction
from belljar.engine.admission.request import admit
from belljar.engine.admission.restriction import read_restriction
from belljar.settings import Settings, load


def test_omitted_fields_have_the_servers_defaults() -> None:
    operators = Restriction(imports=("math",), print_characters=7)
    settings = dataclasses.replace(Settings(), restriction=operators)
    assert read_restriction(settings, {}) == operators
    assert read_restriction(settings, {"imports": None, "max_print_length": None}) == operators
    assert read_restriction(settings, {"imports": []}) == Restriction(imports=(), print_characters=7)
    assert read_restriction(settings, {"max_print_length": 3}) == Restriction(imports=("math",), print_characters=3)


def test_default_list_is_a_setting() -> None:
    settings = load(environ={"BELLJAR_RESTRICTION_IMPORTS": "math, numpy", "BELLJAR_RESTRICTION_PRINT_CHARACTERS": "9"})
    assert settings.restriction == Restriction(imports=("math", "numpy"), print_characters=9)


def test_a_program_is_unrestricted_by_default() -> None:
    assert admit(Settings(), ExecutionRequest("1")).restrict is None


@pytest.mark.parametrize("names", [["math"], ("numpy.linalg", "os"), ["numpy.*"], ["*"], ["math", "math"]])
def test_names_are_accepted(names: Any) -> None:
    assert admit(Settings(), ExecutionRequest("1", restrict={"imports": names})).restrict == Restriction(
        imports=tuple(dict.fromkeys(names))
    )


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        pytest.param({"modules": ["math"]}, "restrict", id="unknown_field"),
        pytest.param({"imports": "math"}, "restrict.imports", id="bare_string"),
        pytest.param({"imports": [5]}, "restrict.imports", id="number"),
        pytest.param({"imports": [""]}, "restrict.imports", id="empty_name"),
        pytest.param({"imports": ["a..b"]}, "restrict.imports", id="empty_part"),
        pytest.param({"imports": ["os; import sys"]}, "restrict.imports", id="code"),
        pytest.param({"imports": ["a" * 201]}, "restrict.imports", id="long_name"),
        pytest.param({"imports": ["a"] * 1001}, "restrict.imports", id="too_many"),
        pytest.param({"max_print_length": 0}, "restrict.max_print_length", id="no_length"),
        pytest.param({"max_print_length": -5}, "restrict.max_print_length", id="negative_length"),
        pytest.param({"max_print_length": 2.5}, "restrict.max_print_length", id="half_a_character"),
        pytest.param({"max_print_length": True}, "restrict.max_print_length", id="boolean"),
        pytest.param({"max_print_length": 1 << 40}, "restrict.max_print_length", id="absurd_length"),
        pytest.param(Restriction(imports=("a b",)), "restrict.imports", id="whole_restriction"),
        pytest.param(["math"], "restrict", id="list"),
    ],
)
def test_invalid_fields_are_named(asked: Any, field: str) -> None:
    with pytest.raises(CallerError) as refused:
        admit(Settings(), ExecutionRequest("1", restrict=asked))
    assert refused.value.details["field"] == field
    assert field in refused.value.message


def test_only_python_can_be_restricted() -> None:
    with pytest.raises(CallerError, match="Python only"):
        read_restriction(Settings(), {}, "ruby")
