"""The built-in tools as programs see them: names, parameters, descriptions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from belljar.tools.functions import as_tool
from belljar.tools.source import Changed, Tool
from belljar.tools.web.access import Web

_MOST_RESULTS = 100


class BuiltIn:
    """The source of the built-in tools."""

    def __init__(self, web: Web, names: Sequence[str], default_model: str) -> None:
        self._web = web
        self._names = names
        self._default_model = default_model

    async def open(self, changed: Changed) -> Sequence[Tool]:
        """Return the tools that the settings name; they never change."""
        await self._web.open()
        functions = {each.__name__: each for each in self._functions()}
        return [as_tool(functions[name], origin="Belljar's own tools") for name in self._names]

    async def close(self) -> None:
        """Close the connections of the tools."""
        await self._web.close()

    def _functions(self) -> list[Any]:
        web = self._web

        async def web_search(
            query: Annotated[str, "what to look for"], top_k: Annotated[int, "how many results"] = 10
        ) -> dict[str, Any]:
            """Search the web. The results are in ["organic"], each with title, link and snippet."""
            return await web.search(query, max(1, min(top_k, _MOST_RESULTS)))

        async def web_parse(
            link: Annotated[str, "the page or PDF to read"],
            user_prompt: Annotated[str, "what to find out from it"],
            llm: Annotated[str, "the model that reads it"] = self._default_model,
        ) -> dict[str, Any]:
            """Read a page or PDF and say what it tells about a question: content, urls, and a score (-1: it failed)."""
            return await web.web_parse(link, user_prompt, llm)

        async def fetch_web(url: Annotated[str, "an http or https address"]) -> str:
            """Get a web page, as HTML."""
            return await web.fetch_web(url)

        async def read_pdf(url: Annotated[str, "where the PDF is; an arxiv abstract leads to its paper"]) -> str:
            """Get the text of a PDF."""
            return await web.read_pdf(url)

        async def llm(
            prompt: Annotated[str, "what to say to it"],
            model: Annotated[str, "which one"] = self._default_model,
            system: Annotated[str, "how it should behave"] = "",
        ) -> str:
            """Ask a language model."""
            return await web.models.ask(prompt, model, system)

        return [web_search, web_parse, fetch_web, read_pdf, llm]
