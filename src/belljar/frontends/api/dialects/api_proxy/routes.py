"""X-Master's API proxy: searches and reads the web for programs without a network.

Answers are those of the original, failures too: a failed search is an empty list, a page that cannot be fetched is
`[false, …]`. It does what Belljar's own tools do, so the caller must be allowed to use tools.
"""

from __future__ import annotations

import time
from typing import Any

from msgspec import Struct
from starlette.responses import Response

from belljar.contract.errors import NotAllowed, ToolFailed
from belljar.frontends.access.refusals import Refusal, retry_after
from belljar.frontends.api.context import Service
from belljar.frontends.api.dialects.fastapi import read_whole, refuse
from belljar.frontends.api.request import Request
from belljar.frontends.api.responses import Answer
from belljar.frontends.api.routing import Dialect
from belljar.tools.web.access import Web

_ADDRESSES_MAX = 10_000
_MOST_RESULTS = 100


class SearchBody(Struct):
    """The body of POST /search. `depth` is accepted and ignored, as in the original's default."""

    query: str
    serper_api_key: str = ""
    top_k: int = 10
    region: str = "us"
    lang: str = "en"
    depth: int = 0


class UrlBody(Struct):
    """The body of POST /read_pdf and /fetch_web."""

    url: str


class Proxy:
    """Answers the proxy's requests, up to a rate for each address."""

    def __init__(self, web: Web, requests_per_second: int) -> None:
        self._web = web
        self._most = requests_per_second
        self._second = 0
        self._counts: dict[str, int] = {}

    async def answer(self, path: str, body: bytes, address: str) -> Any:
        """The answer as a JSON value.

        Raises:
            Refusal: 422, or 429 above the rate.
        """
        self._count(address)
        if path == "/search":
            return await self._search(await read_whole(SearchBody, body))
        url = (await read_whole(UrlBody, body)).url
        if path == "/read_pdf":
            try:
                return await self._web.read_pdf(url)
            except ToolFailed:
                return "Failed to read the PDF"
        try:
            return [True, await self._web.fetch_web(url)]
        except ToolFailed:
            return [False, "Failed to fetch web page"]

    async def _search(self, body: SearchBody) -> Any:
        try:
            return await self._web.search(
                body.query,
                max(1, min(body.top_k, _MOST_RESULTS)),
                region=body.region,
                lang=body.lang,
                api_key=body.serper_api_key,
            )
        except ToolFailed:
            return []

    def _count(self, address: str) -> None:
        second = int(time.monotonic())
        if second != self._second or len(self._counts) > _ADDRESSES_MAX:
            self._second = second
            self._counts.clear()
        self._counts[address] = count = self._counts.get(address, 0) + 1
        if count > self._most:
            message = f"Too many requests. Limit is {self._most} requests per second."
            raise Refusal(429, "too_many_requests", message, headers=retry_after(1.0))


async def answer(proxy: Proxy | None, request: Request) -> Response:
    """The handler of all three paths."""
    if proxy is None:
        raise Refusal(404, "not_found", "Not Found")
    if not request.caller.grants.tools:
        raise NotAllowed(f"key {request.caller.name!r} may not use tools, and so not this; ask the operator")
    return Answer(await proxy.answer(request.scope["path"], await request.body(), request.address))


async def _answer(service: Service, request: Request) -> Response:
    return await answer(service.proxy, request)


PATHS = ("/search", "/read_pdf", "/fetch_web")

DIALECT = Dialect(
    name="proxy",
    title="X-Master API proxy",
    port=1234,
    routes={path: {"POST": _answer} for path in PATHS},
    refuse=refuse,
)
