"""What a source of tools offers."""

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
    """A tool, with what runs when it is called."""

    spec: ToolSpec
    run: Callable[[Arguments], Awaitable[Any]]  # raises ToolFailed, or anything
    origin: str  # whose it is, for messages: "tool server 'files'"


#: Takes all the tools of a source, when they are not those any more that it told of before.
Changed = Callable[[Sequence[Tool]], None]


class Source(Protocol):
    """Where tools come from."""

    async def open(self, changed: Changed) -> Sequence[Tool]:
        """Start what is needed; the tools there are. Raises SandboxFault when it cannot."""

    async def close(self) -> None:
        """End it."""


def name_in_python(name: str) -> str:
    """A dash becomes an underscore, as does all else that no Python name has."""
    text = re.sub(r"[^0-9A-Za-z_]", "_", name) or "_"
    if text[0].isdigit():
        text = f"_{text}"
    return f"{text}_" if iskeyword(text) else text
