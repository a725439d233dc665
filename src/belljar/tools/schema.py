"""Checks arguments against the part of JSON Schema that describes parameters.

This is not a library's job: arguments come from hostile programs, and matching a `pattern` would let a program block
the event loop with one string. Tools check patterns, formats and conditions themselves.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

_DEPTH_MAX = 64
_KINDS: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}


_BOUNDS: tuple[tuple[str, str, Callable[[Any, Any], bool]], ...] = (
    ("minimum", "at least", operator.lt),
    ("maximum", "at most", operator.gt),
    ("exclusiveMinimum", "more than", operator.le),
    ("exclusiveMaximum", "less than", operator.ge),
)


def find_problem(value: Any, schema: Any, *, where: str = "", root: Any = None, depth: int = 0) -> str | None:
    """Describe what is wrong with `value`, naming the place; None if it fits."""
    if not isinstance(schema, Mapping):
        return f"{where or 'it'} is not accepted" if schema is False else None
    if depth > _DEPTH_MAX:
        return f"{where} is nested too deeply"
    root = schema if root is None else root
    more = {"root": root, "depth": depth + 1}
    if "$ref" in schema:
        target = _resolve(schema["$ref"], root)
        return None if target is None else find_problem(value, target, where=where, **more)
    return (
        _wrong_type(value, schema, where)
        or _wrong_value(value, schema, where)
        or _wrong_size(value, schema, where)
        or _wrong_parts(value, schema, where, more)
        or _wrong_choice(value, schema, where, more)
    )


def _resolve(reference: Any, root: Any) -> Any:
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    found = root
    for step in reference[1:].strip("/").split("/") if reference != "#" else ():
        step = step.replace("~1", "/").replace("~0", "~")
        found = found.get(step) if isinstance(found, Mapping) else None
    return found


def _wrong_type(value: Any, schema: Mapping[str, Any], where: str) -> str | None:
    kinds = schema.get("type")
    if kinds is None:
        return None
    kinds = kinds if isinstance(kinds, list) else [kinds]
    if any(_is_of(value, kind) for kind in kinds):
        return None
    return f"{where or 'it'} must be {_article(' or '.join(map(str, kinds)))}, not {_article(name_type(value))}"


def _is_of(value: Any, kind: Any) -> bool:
    types = _KINDS.get(kind)
    if types is None:
        return True  # an unknown type
    if isinstance(value, bool):
        return bool(kind == "boolean")
    if kind == "integer" and isinstance(value, float):
        return bool(value.is_integer())
    return isinstance(value, types)


def name_type(value: Any) -> str:
    """The JSON name of the type of `value`."""
    if isinstance(value, bool):
        return "boolean"
    return next((name for name, types in _KINDS.items() if isinstance(value, types)), type(value).__name__)


def _article(name: str) -> str:
    if name == "null":
        return name
    return f"an {name}" if name[:1] in "aeio" else f"a {name}"


def _wrong_value(value: Any, schema: Mapping[str, Any], where: str) -> str | None:
    allowed = schema.get("enum")
    if isinstance(allowed, list) and value not in allowed:
        return f"{where} must be one of: {', '.join(map(repr, allowed[:20]))}"
    if "const" in schema and value != schema["const"]:
        return f"{where} must be {schema['const']!r}"
    return None


def _wrong_size(value: Any, schema: Mapping[str, Any], where: str) -> str | None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _wrong_number(value, schema, where)
    if isinstance(value, str | list):
        least, most = ("minLength", "maxLength") if isinstance(value, str) else ("minItems", "maxItems")
        unit = "characters" if isinstance(value, str) else "elements"
        if _is_number(schema.get(least)) and len(value) < schema[least]:
            return f"{where} must have at least {schema[least]} {unit}"
        if _is_number(schema.get(most)) and len(value) > schema[most]:
            return f"{where} must have at most {schema[most]} {unit}"
    return None


def _wrong_number(value: float, schema: Mapping[str, Any], where: str) -> str | None:
    for name, words, is_outside in _BOUNDS:
        bound = schema.get(name)
        if _is_number(bound) and is_outside(value, bound):
            return f"{where} must be {words} {bound}"
    return None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _wrong_parts(value: Any, schema: Mapping[str, Any], where: str, more: Mapping[str, Any]) -> str | None:
    if isinstance(value, list):
        for number, each in enumerate(value):
            problem = find_problem(each, schema.get("items"), where=f"{where}[{number}]", **more)
            if problem:
                return problem
    if not isinstance(value, dict):
        return None
    properties = schema.get("properties")
    properties = properties if isinstance(properties, Mapping) else {}
    for name in schema.get("required") or ():
        if name not in value:
            return f"{_join(where, name)} is missing"
    for name, each in value.items():
        if name in properties:
            problem = find_problem(each, properties[name], where=_join(where, name), **more)
        elif schema.get("additionalProperties", True) is False and not schema.get("patternProperties"):
            known = ", ".join(map(str, properties)) or "nothing"
            problem = f"unknown argument {name[:80]!r}{f' in {where}' if where else ''}; choose from: {known}"
        else:
            problem = find_problem(each, schema.get("additionalProperties"), where=_join(where, name), **more)
        if problem:
            return problem
    return None


def _wrong_choice(value: Any, schema: Mapping[str, Any], where: str, more: Mapping[str, Any]) -> str | None:
    for name in ("anyOf", "oneOf"):
        choices = schema.get(name)
        if isinstance(choices, list) and choices:
            problems = [find_problem(value, choice, where=where, **more) for choice in choices]
            if all(problems):
                return " / ".join(dict.fromkeys(problem for problem in problems if problem))
    for each in schema.get("allOf") or ():
        problem = find_problem(value, each, where=where, **more)
        if problem:
            return problem
    return None


def _join(where: str, name: str) -> str:
    return f"{where}.{name}" if where else str(name)
