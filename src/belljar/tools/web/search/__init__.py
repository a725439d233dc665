"""Search engines, one module each; all return results in Serper's format, which agents know.

The format: {"organic": [{"title", "link", "snippet", "position"}, …], …}. To add an engine, write a module with a
function as in `searxng.py`, and add a line here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from belljar.settings import WebSettings
from belljar.tools.web.search import searxng, serper

if TYPE_CHECKING:
    import httpx


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The parameters of a search."""

    query: str
    top_k: int
    region: str
    lang: str
    api_key: str = ""  # the caller's own, if the engine takes one


Search = Callable[["httpx.AsyncClient", WebSettings, Question], Awaitable[Any]]

PROVIDERS: dict[str, Search] = {"serper": serper.search, "searxng": searxng.search}
