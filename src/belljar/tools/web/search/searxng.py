"""Searches with the operator's SearXNG; its JSON format must be enabled (`search.formats` in its settings)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from belljar.settings import WebSettings
from belljar.tools.web.answers import read_json

if TYPE_CHECKING:
    import httpx

    from belljar.tools.web.search import Question


async def search(client: httpx.AsyncClient, settings: WebSettings, asked: Question) -> dict[str, Any]:
    """Search. Raises httpx.HTTPError, or ValueError if the answer is invalid."""
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
