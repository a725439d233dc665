"""What the description of the API is put together from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

REF = "#/components/schemas/{name}"


def ref(name: str) -> dict[str, Any]:
    """A schema by its name."""
    return {"$ref": REF.format(name=name)}


def object_of(properties: Mapping[str, Any], *optional: str) -> dict[str, Any]:
    """An object with these properties, all of them required but the optional ones."""
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": dict(properties), "required": required}


def list_of(of: Mapping[str, Any]) -> dict[str, Any]:
    """A list of one kind."""
    return {"type": "array", "items": dict(of)}


def or_null(of: Mapping[str, Any]) -> dict[str, Any]:
    """That, or null."""
    return {"anyOf": [dict(of), {"type": "null"}]}


STRING, INTEGER, NUMBER, BOOLEAN = ({"type": kind} for kind in ("string", "integer", "number", "boolean"))
NULLABLE_STRING, NULLABLE_INTEGER = ({"type": [kind, "null"]} for kind in ("string", "integer"))

ALWAYS = (400, 403, 405, 503)
WITH_KEY = (*ALWAYS, 401)
WITH_BODY = (*WITH_KEY, 413, 422, 429)


def json_of(of: Mapping[str, Any]) -> dict[str, Any]:
    """A body of JSON."""
    return {"application/json": {"schema": dict(of)}}


def streams() -> dict[str, Any]:
    """The two kinds of streams."""
    return {kind: {"schema": STRING} for kind in ("application/x-ndjson", "text/event-stream")}


def operation(
    name: str,
    summary: str,
    content: Mapping[str, Any],
    errors: tuple[int, ...],
    description: str = "",
    body: Mapping[str, Any] | None = None,
    *,
    status: int = 200,
    needs_body: bool = True,
) -> dict[str, Any]:
    """One method of a path."""
    good = {"description": summary, "content": dict(content)} if content else {"description": summary}
    responses: dict[str, Any] = {str(status): good}
    for each in sorted(errors):
        responses[str(each)] = {"$ref": f"#/components/responses/{each}"}
    made: dict[str, Any] = {"operationId": name, "summary": summary, "responses": responses}
    if description:
        made["description"] = description
    if 401 not in errors:
        made["security"] = []
    if body is not None:
        made["requestBody"] = {"required": needs_body, "content": dict(body)}
    return made
