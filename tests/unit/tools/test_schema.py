"""Checking values against schemas, and the error messages."""

from __future__ import annotations

from typing import Any

import pytest

from belljar.tools.schema import find_problem

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 5},
        "age": {"type": "integer", "minimum": 0, "exclusiveMaximum": 150},
        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 2},
        "kind": {"enum": ["a", "b"]},
        "friend": {"$ref": "#/$defs/friend"},
        "either": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    },
    "required": ["name"],
    "additionalProperties": False,
    "$defs": {"friend": {"type": "object", "properties": {"friend": {"$ref": "#/$defs/friend"}}}},
}


@pytest.mark.parametrize(
    "value",
    [
        {"name": "ann"},
        {"name": "ann", "age": 3, "tags": ["x"], "kind": "a", "either": None},
        {"name": "ann", "age": 3.0},
        {"name": "ann", "friend": {"friend": {"friend": {}}}},
    ],
)
def test_valid_values(value: Any) -> None:
    assert find_problem(value, PERSON) is None


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({}, "name is missing"),
        ([], "it must be an object, not an array"),
        ({"name": 1}, "name must be a string, not an integer"),
        ({"name": ""}, "name must have at least 1 characters"),
        ({"name": "x" * 6}, "name must have at most 5 characters"),
        ({"name": "a", "age": -1}, "age must be at least 0"),
        ({"name": "a", "age": 150}, "age must be less than 150"),
        ({"name": "a", "age": 1.5}, "age must be an integer, not a number"),
        ({"name": "a", "age": True}, "age must be an integer, not a boolean"),
        ({"name": "a", "tags": ["x", 1]}, "tags[1] must be a string, not an integer"),
        ({"name": "a", "tags": ["x"] * 3}, "tags must have at most 2 elements"),
        ({"name": "a", "kind": "c"}, "kind must be one of: 'a', 'b'"),
        ({"name": "a", "friend": {"friend": 1}}, "friend.friend must be an object, not an integer"),
        ({"name": "a", "either": 1}, "either must be a string, not an integer / either must be null, not an integer"),
        ({"name": "a", "more": 1}, "unknown argument 'more'; choose from: name, age, tags, kind, friend, either"),
    ],
)
def test_invalid_values(value: Any, message: str) -> None:
    assert find_problem(value, PERSON) == message


def test_a_value_nested_too_deeply_is_refused() -> None:
    value: Any = {}
    for _ in range(200):
        value = {"friend": value}
    assert "nested too deeply" in str(find_problem({"name": "a", "friend": value}, PERSON))


@pytest.mark.parametrize("schema", [{}, True, {"type": "unheard-of"}, {"$ref": "#/nowhere"}, {"$ref": 7}, {"enum": 3}])
def test_an_empty_schema_accepts_everything(schema: Any) -> None:
    assert find_problem({"a": 1}, schema) is None
