"""The interface of a source of tools, such as an MCP server."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from keyword import iskeyword
from typing import Any, Protocol

from belljar.contract.tools import ToolSpec

Arguments = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A tool, and the function that runs it."""

    spec: ToolSpec
    run: Callable[[Arguments], Awaitable[Any]]  # raises ToolFailed, or anything
    origin: str  # for messages, such as "tool server 'files'"


#: Called with all tools of a source when they have changed.
Changed = Callable[[Sequence[Tool]], None]


class Source(Protocol):
    async def open(self, changed: Changed) -> Sequence[Tool]:
        """Start the source and return its tools. Raises SandboxFault if it cannot start."""

    async def close(self) -> None:
        """End everything that `open` started."""


def name_in_python(name: str) -> str:
    """Replace every character that a Python name cannot have by an underscore."""
    text = re.sub(r"[^0-9A-Za-z_]", "_", name) or "_"
    if text[0].isdigit():
        text = f"_{text}"
    return f"{text}_" if iskeyword(text) else text
