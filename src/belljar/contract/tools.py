"""Tools: functions of the host that a program may call, and the interface of what runs them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

ALL_TOOLS = "*"  # in Execution.tools: every tool of the server


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """A tool as programs see it."""

    name: str  # a Python identifier
    description: str
    input_schema: Mapping[str, Any]  # JSON Schema of an object

    def as_json(self) -> dict[str, Any]:
        return {"name": self.name, "description": self.description, "input_schema": dict(self.input_schema)}


class ToolHost(Protocol):
    """Runs tool calls. Back ends carry bytes between a program and this; they know nothing of tools."""

    async def open(self) -> None:
        """Start the tools. Raises InvalidSettings when two have the same name."""

    async def close(self) -> None:
        """End everything that was started."""

    @property
    def specs(self) -> Sequence[ToolSpec]:
        """Every tool that all programs may name."""

    def select(self, names: Iterable[str]) -> tuple[str, ...]:
        """The keys of the named tools; ALL_TOOLS stands for every one. Raises UnknownTool."""

    def describe(self, keys: Iterable[str]) -> Sequence[ToolSpec]:
        """The tools with these keys as the program sees them, in their order."""

    def lending(self, functions: Iterable[str | Callable[..., Any]]) -> AbstractContextManager[tuple[str, ...]]:
        """Offer Python functions, by secret keys, until the context ends; a name stands for itself."""

    async def call(self, key: str, arguments: Mapping[str, Any]) -> Any:
        """Run a tool; a JSON value. Arguments are checked first. Raises ToolFailed."""

    def facts(self) -> Mapping[str, Any]:
        """Numbers for monitoring: calls by tool and result."""
