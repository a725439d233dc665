"""The operations of the built-in web tools, with their limits, fallbacks and cache."""

from __future__ import annotations

import asyncio
import logging
import re
from typing import TYPE_CHECKING, Any

import msgspec

from belljar.contract.errors import InvalidSettings, ToolFailed
from belljar.settings import JailSettings, LlmSettings, WebSettings
from belljar.tools.web.answers import read_json
from belljar.tools.web.cache import Cache
from belljar.tools.web.fetch import Fetcher, Forbidden, Page, new_client
from belljar.tools.web.llm import Models
from belljar.tools.web.reader import Reader
from belljar.tools.web.search import PROVIDERS, Question

if TYPE_CHECKING:
    import httpx

_log = logging.getLogger("belljar.tools")
_SCRAPE_SECONDS = 15.0
_PAUSE_SECONDS = 0.2
_ARXIV = re.compile(r"^https?://(?:www\.)?arxiv\.org/abs/([^?#]+)")
_FENCE = "```"


class Web:
    """Searches, reads pages and asks models. Bound to the event loop that opens it."""

    _client: httpx.AsyncClient

    def __init__(self, web: WebSettings, llm: LlmSettings, uid_base: int | None = None) -> None:
        """Processes that parse pages take their uid from `uid_base` (the setting `jail.uid_base`)."""
        self._settings = web
        self._uid_base = JailSettings().uid_base if uid_base is None else uid_base
        self._llm_settings = llm
        self._is_open = False
        if web.search_provider not in PROVIDERS:
            raise InvalidSettings(
                f"web.search_provider: unknown provider {web.search_provider!r}; choose from: {', '.join(PROVIDERS)}"
            )

    async def open(self) -> None:
        """Get ready. Raises InvalidSettings if a library is missing."""
        if not self._is_open:
            self._client = new_client()
            self._is_open = True
            self._cache = Cache(self._settings.cache_bytes, self._settings.cache_seconds)
            self._fetcher = Fetcher(self._client, self._settings)
            self._reader = Reader(self._settings, self._uid_base)
            self.models = Models(self._client, self._llm_settings)

    async def close(self) -> None:
        if self._is_open:
            self._is_open = False
            await self._cache.close()
            await self._client.aclose()

    async def search(
        self, query: str, top_k: int = 10, *, region: str = "", lang: str = "", api_key: str = ""
    ) -> dict[str, Any]:
        """Return the results of the search engine.

        Raises:
            ToolFailed: the search engine failed, also when asked again.
        """
        settings = self._settings
        asked = Question(
            query=query,
            top_k=top_k,
            region=region or settings.search_region,
            lang=lang or settings.search_lang,
            api_key=api_key,
        )
        key = ("search", settings.search_provider, asked.query, asked.top_k, asked.region, asked.lang)
        found: dict[str, Any] = await self._cache.get(key, lambda: self._search(asked))
        return found

    async def _search(self, asked: Question) -> Any:
        import httpx

        provider = PROVIDERS[self._settings.search_provider]
        problem = ""
        for attempt in range(self._settings.search_tries):
            if attempt:
                await asyncio.sleep(_PAUSE_SECONDS * attempt)
            try:
                async with asyncio.timeout(self._settings.fetch_seconds):
                    return await provider(self._client, self._settings, asked)
            except httpx.HTTPStatusError as error:
                problem = f"it answered with status {error.response.status_code}"
                if error.response.status_code in (400, 401, 403):
                    break
            except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, ValueError) as error:
                problem = f"{type(error).__name__} {error}".strip()
        _log.warning("the search engine failed: %s", problem)
        raise ToolFailed(f"the search engine failed: {problem}")

    async def fetch_web(self, url: str) -> str:
        """Return the page at `url` as HTML; falls back to the scraping service.

        Raises:
            ToolFailed: the page could not or must not be fetched.
        """
        text: str = await self._cache.get(("page", url), lambda: self._fetch_web(url))
        return text

    async def _fetch_web(self, url: str) -> str:
        try:
            page = await self._fetcher.get(url)
        except Forbidden:
            raise
        except ToolFailed as error:
            if not self._settings.serper_api_key:
                raise
            _log.info("%s: %s; asking the scraping service", url, error)
            return await self._scrape(url)
        return await self._reader.text(page.content, page.codec)

    async def _scrape(self, url: str) -> str:
        import httpx

        try:
            response = await self._client.post(
                self._settings.scrape_url,
                headers={"X-API-KEY": self._settings.serper_api_key},
                json={"url": url},
                timeout=_SCRAPE_SECONDS,
            )
            response.raise_for_status()
            text = read_json(response)["text"]
        except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
            raise ToolFailed(f"neither we nor the scraping service could get it: {type(error).__name__}") from error
        return str(text)[: self._settings.fetch_bytes]

    async def read_pdf(self, url: str) -> str:
        """Return the text of the PDF at `url`.

        Raises:
            ToolFailed: the PDF could not be fetched or read.
        """
        url = _ARXIV.sub(r"https://arxiv.org/pdf/\1", url)
        text: str = await self._cache.get(("pdf", url), lambda: self._read_pdf(url))
        return text

    async def _read_pdf(self, url: str) -> str:
        page = await self._fetcher.get(url)
        if not page.is_pdf:
            raise ToolFailed("the document is not a PDF")
        return await self._reader.pdf(page.content)

    async def web_parse(self, link: str, user_prompt: str, llm: str = "") -> dict[str, Any]:
        """Have a model answer a question from a page or PDF. A failure is an answer with score -1."""
        try:
            answer: dict[str, Any] = await self._cache.get(
                ("parse", link, user_prompt, llm), lambda: self._parse(link, user_prompt, llm)
            )
        except ToolFailed as error:
            return {"content": f"failed: {error.message}", "urls": [], "score": -1}
        return answer

    async def _parse(self, link: str, user_prompt: str, llm: str) -> dict[str, Any]:
        settings = self._settings
        link = _ARXIV.sub(r"https://arxiv.org/pdf/\1", link)
        page = await self._page(link)
        if page.is_pdf:
            text = await self._reader.pdf(page.content)
            prompt = _fill(settings.paper_prompt, user_query=user_prompt, pdf_info=text[: settings.prompt_bytes])
        else:
            text = await self._reader.html(page.content, page.codec)
            prompt = _fill(settings.summary_prompt, user=user_prompt, info=text[: settings.prompt_bytes])
        return _read_summary(await self.models.ask(prompt, llm))

    async def _page(self, link: str) -> Page:
        try:
            return await self._fetcher.get(link)
        except Forbidden:
            raise
        except ToolFailed:
            if not self._settings.serper_api_key:
                raise
            return Page(url=link, content_type="text/html; charset=utf-8", content=(await self._scrape(link)).encode())


def _fill(template: str, **values: str) -> str:
    """Fill in a template that may contain other braces; braces in the values are left alone."""
    return re.sub(
        r"\{\{|\}\}|\{(" + "|".join(values) + r")\}",
        lambda found: values[found[1]] if found[1] else found[0][0],
        template,
    )


def _read_summary(said: str) -> dict[str, Any]:
    """Parse a model's answer, which should be JSON but may be plain text."""
    try:
        answer = msgspec.json.decode(_without_fence(said))
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        answer = None
    if not isinstance(answer, dict) or "content" not in answer:
        return {"content": said, "urls": [], "score": 1}
    urls = answer.get("urls")
    return {
        "content": answer["content"],
        "urls": urls if isinstance(urls, list) else [],
        "score": answer.get("score", 1),
    }


def _without_fence(said: str) -> str:
    """Strip the code fence around a text, if it has both ends."""
    text = said.strip()
    if len(text) < 2 * len(_FENCE) or not (text.startswith(_FENCE) and text.endswith(_FENCE)):
        return said
    return text[len(_FENCE) : -len(_FENCE)].removeprefix("json").strip()
