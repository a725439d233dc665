"""What one MCP server offers and how: chosen once, by whoever starts it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from belljar import __version__

INSTRUCTIONS = (
    "Runs code in a sandbox: no access to the user's files, no network unless the operator gave it, limits on time and "
    "memory. Only what a program prints comes back, so print every result you need. Figures that matplotlib shows, or "
    "leaves open, come back as images. Each run starts afresh; open_session keeps variables, imports and files "
    "between runs, and its id is an argument of later calls."
)


#: How code-sandbox-mcp presents itself.
CODE_SANDBOX: Mapping[str, Any] = {
    "name": "code-sandbox",
    "title": "Code Sandbox",
    "instructions": "Executes Python and JavaScript code securely in isolated sandboxes and returns what it printed.",
    "has_prompt": False,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One server's name, its tools, and what every program that it runs is given."""

    name: str = "belljar"
    title: str = "Belljar sandbox"
    version: str = __version__
    instructions: str = INSTRUCTIONS
    tools: tuple[str, ...] = ()  # names of tools and groups; empty: all
    is_structured: bool = True  # results also as JSON by a schema, not as text alone
    env: Mapping[str, str] = field(default_factory=dict)  # variables of every program
    network: bool = False
    environments: Mapping[str, str] = field(default_factory=dict)  # by language, where it is not "default"
    language: str = ""  # of an image that all tools of code-sandbox-mcp use, whatever they are called
    has_prompt: bool = True

    def environment_of(self, language: str) -> str:
        """The guest environment, or image, that programs of a language get."""
        return self.environments.get(language, "default")
