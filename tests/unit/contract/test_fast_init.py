"""A class made by `fast_init` behaves exactly like the dataclass."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle

import pytest

from belljar.contract.execution import Evidence, Execution, Outcome, Usage


@pytest.mark.parametrize("kind", [Evidence, Execution, Outcome, Usage])
def test_it_accepts_its_fields(kind: type) -> None:
    parameters = inspect.signature(kind).parameters
    assert list(parameters) == [each.name for each in dataclasses.fields(kind)]
    for each in dataclasses.fields(kind):
        assert parameters[each.name].kind is inspect.Parameter.KEYWORD_ONLY
        needed = each.default is each.default_factory is dataclasses.MISSING
        assert (parameters[each.name].default is inspect.Parameter.empty) == needed


def test_it_is_frozen_and_equal_to_its_copies() -> None:
    one = Execution(code="x", args=("a",))
    assert one == Execution(code="x", args=("a",)) != Execution(code="y")
    assert dataclasses.replace(one, code="y").args == ("a",)
    assert pickle.loads(pickle.dumps(one)) == copy.deepcopy(one) == one
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.code = "y"  # type: ignore[misc]


def test_default_factories_are_not_shared() -> None:
    assert Execution(code="x").env is not Execution(code="x").env


@pytest.mark.parametrize("given", [{}, {"code": "x", "colour": "red"}], ids=["missing", "unknown"])
def test_it_refuses_unknown_and_missing_arguments(given: dict[str, str]) -> None:
    with pytest.raises(TypeError, match="argument"):
        Execution(**given)  # type: ignore[arg-type]
