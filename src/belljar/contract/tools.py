"""Tools: functions of the host that a program may call. What one is, and who answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

ALL_TOOLS = "*"  # in Execution.tools: every tool there is


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """A tool as programs see it."""

    name: str  # a Python identifier
    description: str
    input_schema: Mapping[str, Any]  # JSON Schema of an object

    def as_json(self) -> dict[str, Any]:
        """The wire form."""
        return {"name": self.name, "description": self.description, "input_schema": dict(self.input_schema)}


class ToolHost(Protocol):
    """Who answers tool calls. Back ends carry bytes between a program and this; they know nothing of tools."""

    async def open(self) -> None:
        """Start what answers. Raises InvalidSettings when two tools have the same name."""

    async def close(self) -> None:
        """End everything that was started."""

    @property
    def specs(self) -> Sequence[ToolSpec]:
        """Every tool that is offered to all."""

    def select(self, names: Iterable[str]) -> tuple[str, ...]:
        """The keys of the tools that are asked for; ALL_TOOLS stands for every one. Raises UnknownTool."""

    def describe(self, keys: Iterable[str]) -> Sequence[ToolSpec]:
        """What the program is told of the tools with these keys, in their order."""

    def lending(self, functions: Iterable[str | Callable[..., Any]]) -> AbstractContextManager[tuple[str, ...]]:
        """Offer Python functions as long as this lasts, to those who know their keys; a name stands for itself."""

    async def call(self, key: str, arguments: Mapping[str, Any]) -> Any:
        """Run a tool; a JSON value. Arguments are checked first. Raises ToolFailed."""

    def facts(self) -> Mapping[str, Any]:
        """Numbers for monitoring: calls by tool and result."""
