"""Searches Google through serper.dev."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from belljar.settings import WebSettings
from belljar.tools.web.answers import read_json

if TYPE_CHECKING:
    import httpx

    from belljar.tools.web.search import Question

_NOT_FOR_AGENTS = ("searchParameters", "credits")


async def search(client: httpx.AsyncClient, settings: WebSettings, asked: Question) -> dict[str, Any]:
    """Search. Raises httpx.HTTPError, or ValueError if the answer is invalid."""
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
