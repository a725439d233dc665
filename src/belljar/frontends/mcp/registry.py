"""Tools as data: a name, what it takes, what it does, what a client may assume about it.

Arguments are a msgspec struct: it gives the input schema that a model reads, and the check of what the model sends,
so the two cannot drift apart. Results are plain dictionaries in the form of the wire.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec

from belljar.contract.errors import InvalidExecution, InvalidSettings
from belljar.frontends.mcp.tool_call import Call

Json = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Tool:
    """Something a model can call."""

    name: str
    title: str
    description: str
    takes: type[msgspec.Struct]
    call: Callable[[Call, Any], Awaitable[Json]]
    group: str
    gives: Json | None = None  # the schema of its structured result
    is_read_only: bool = False
    is_destructive: bool = False
    is_idempotent: bool = False

    @cached_property
    def input_schema(self) -> Json:
        """What a model must send."""
        return schema_of(self.takes)

    def describe(self, *, is_structured: bool, has_network: bool) -> Json:
        """Its entry in tools/list."""
        entry: Json = {
            "name": self.name,
            "title": self.title,
            "description": self.description,
            "inputSchema": self.input_schema,
            "annotations": {
                "title": self.title,
                "readOnlyHint": self.is_read_only,
                "destructiveHint": self.is_destructive,
                "idempotentHint": self.is_idempotent,
                "openWorldHint": has_network and not self.is_read_only,
            },
        }
        if self.gives is not None and is_structured:
            entry["outputSchema"] = self.gives
        return entry

    def read(self, arguments: Mapping[str, Any] | None) -> Any:
        """The arguments of a call. Numbers that come as text are taken: models send them.

        Raises:
            InvalidExecution: they are not what the schema asks for.
        """
        try:
            return msgspec.convert(dict(arguments or {}), self.takes, strict=False)
        except msgspec.ValidationError as error:
            said = str(error).replace("`$.", "`").replace(" - at `", " at `").replace("`", "'")
            fields = ", ".join(self.takes.__struct_fields__) or "none"
            raise InvalidExecution(
                f"invalid arguments for {self.name}: {said[0].lower() + said[1:]}; it takes: {fields}"
            ) from None


def schema_of(kind: type[msgspec.Struct]) -> Json:
    """The JSON schema of a struct, whole and without references: not every client follows them."""
    (schema,), parts = msgspec.json.schema_components([kind], ref_template="{name}")
    inlined: Json = _inline(schema, parts)
    return inlined


def _inline(node: Any, parts: Mapping[str, Any]) -> Any:
    if isinstance(node, dict):
        if "$ref" in node:
            return _inline(parts[node["$ref"]], parts)
        return {
            key: _inline(value, parts) for key, value in node.items() if key != "title" or not isinstance(value, str)
        }
    if isinstance(node, list):
        return [_inline(each, parts) for each in node]
    return node


def select(tools: Iterable[Tool], wanted: tuple[str, ...]) -> tuple[Tool, ...]:
    """The tools that are asked for by name or group, in the order of the registry, so lists can be cached.

    Raises:
        InvalidSettings: there is no such tool or group.
    """
    known = tuple(tools)
    words = {tool.name for tool in known} | {tool.group for tool in known}
    for word in wanted:
        if word not in words:
            groups = dict.fromkeys(tool.group for tool in known)
            raise InvalidSettings(
                f"there is no MCP tool {word!r}; known are: {', '.join(tool.name for tool in known)}; "
                f"or a whole group: {', '.join(groups)}"
            )
    return tuple(tool for tool in known if not wanted or tool.name in wanted or tool.group in wanted)
