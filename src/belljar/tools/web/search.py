"""Search engines; all return results in Serper's format, which agents know.

The format: {"organic": [{"title", "link", "snippet", "position"}, …], …}. To add an engine, write a function such as
`_search_searxng` and add it to `PROVIDERS`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from belljar.settings import WebSettings
from belljar.tools.web.answers import read_json

if TYPE_CHECKING:
    import httpx

_NOT_FOR_AGENTS = ("searchParameters", "credits")  # of Serper's answers


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The parameters of a search."""

    query: str
    top_k: int
    region: str
    lang: str
    api_key: str = ""  # the caller's own, if the engine takes one


async def _search_serper(client: httpx.AsyncClient, settings: WebSettings, asked: Question) -> dict[str, Any]:
    """Search Google through serper.dev. Raises httpx.HTTPError, or ValueError if the answer is invalid."""
    response = await client.post(
        settings.serper_url,
        headers={"X-API-KEY": asked.api_key or settings.serper_api_key},
        json={"q": asked.query, "num": asked.top_k, "gl": asked.region, "hl": asked.lang},
    )
    response.raise_for_status()
    found = read_json(response)
    if not isinstance(found, dict):
        raise ValueError("the answer is not in serper.dev's format")
    return {name: value for name, value in found.items() if name not in _NOT_FOR_AGENTS}


async def _search_searxng(client: httpx.AsyncClient, settings: WebSettings, asked: Question) -> dict[str, Any]:
    """Search with the operator's SearXNG; its JSON format must be enabled (`search.formats` in its settings).

    Raises:
        httpx.HTTPError: the request failed.
        ValueError: the answer is invalid.
    """
    response = await client.get(
        settings.searxng_url.rstrip("/") + "/search",
        params={"q": asked.query, "format": "json", "language": f"{asked.lang}-{asked.region.upper()}"},
    )
    response.raise_for_status()
    found = read_json(response)
    results = found.get("results") if isinstance(found, dict) else None
    if not isinstance(results, list):
        raise ValueError("the answer is not in SearXNG's format")
    organic = [
        {
            "title": str(each.get("title") or ""),
            "link": str(each.get("url") or ""),
            "snippet": str(each.get("content") or ""),
            "position": position,
        }
        for position, each in enumerate(results[: asked.top_k], 1)
        if isinstance(each, dict)
    ]
    related = [{"query": each} for each in found.get("suggestions") or () if isinstance(each, str)]
    return {"organic": organic, **({"relatedSearches": related} if related else {})}


Search = Callable[["httpx.AsyncClient", WebSettings, Question], Awaitable[Any]]

#: The values of the setting `web.search_provider`.
PROVIDERS: dict[str, Search] = {"serper": _search_serper, "searxng": _search_searxng}
