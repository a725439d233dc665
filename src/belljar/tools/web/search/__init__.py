"""Search engines, each in a file of its own: what to ask, and its answer in the shape that agents know.

That shape is Serper's: {"organic": [{"title", "link", "snippet", "position"}, …], …}. A new one is a file with a
function as in `searxng.py`, and a line here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from belljar.settings import WebSettings
from belljar.tools.web.search import searxng, serper

if TYPE_CHECKING:
    import httpx

    from belljar.tools.web.search.question import Question

Search = Callable[["httpx.AsyncClient", WebSettings, "Question"], Awaitable[Any]]

PROVIDERS: dict[str, Search] = {"serper": serper.search, "searxng": searxng.search}
