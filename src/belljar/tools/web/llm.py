"""Asks language models over OpenAI-compatible APIs; attempts are bounded, and temporary failures are retried."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from belljar.contract.errors import ToolFailed
from belljar.settings import LlmSettings, ModelSettings
from belljar.tools.web.answers import read_json

if TYPE_CHECKING:
    import httpx

_PAUSE_SECONDS = 0.5
_PAUSE_SECONDS_MAX = 8.0
_ANSWER_BYTES_MAX = 8 * 1024 * 1024


class Models:
    """The models that the operator has listed."""

    def __init__(self, client: httpx.AsyncClient, settings: LlmSettings) -> None:
        self._client = client
        self._settings = settings

    async def ask(self, prompt: str, model: str = "", system: str = "") -> str:
        """Return the model's answer, or that of the base model if it fails.

        Raises:
            ToolFailed: no model answered.
        """
        names = dict.fromkeys(name for name in (model or self._settings.use_model, self._settings.base_model) if name)
        known = [name for name in names if name in self._settings.models]
        if not known:
            listed = ", ".join(self._settings.models) or "none"
            raise ToolFailed(f"unknown model {next(iter(names))!r}; choose from: {listed}")
        messages = [{"role": "system", "content": system}] if system else []
        messages.append({"role": "user", "content": prompt})
        problems = []
        for name in known:
            try:
                return await self._ask_one(name, self._settings.models[name], messages)
            except ToolFailed as error:
                problems.append(f"{name}: {error.message}")
        raise ToolFailed("; ".join(problems))

    async def _ask_one(self, name: str, model: ModelSettings, messages: Sequence[Mapping[str, str]]) -> str:
        problem = "it was not asked"
        for attempt in range(max(1, model.retries + 1)):
            if attempt:
                await asyncio.sleep(min(_PAUSE_SECONDS * 2 ** (attempt - 1), _PAUSE_SECONDS_MAX))
            try:
                return await self._ask_once(name, model, messages)
            except _WorthAnother as error:
                problem = str(error)
        raise ToolFailed(problem)

    async def _ask_once(self, name: str, model: ModelSettings, messages: Sequence[Mapping[str, str]]) -> str:
        import httpx

        url = model.url.rstrip("/")
        url = model.url if url.endswith("/completions") else f"{url}/chat/completions"
        try:
            response = await self._client.post(
                url,
                json={"model": name, "messages": list(messages)},
                headers=_authorize(model.authorization),
                timeout=model.seconds,
            )
        except httpx.HTTPError as error:
            raise _WorthAnother(f"{type(error).__name__} {error}".strip()) from error
        if response.status_code == 429 or response.status_code >= 500:
            raise _WorthAnother(f"it answered with status {response.status_code}")
        if response.status_code != 200:
            raise ToolFailed(f"it answered with status {response.status_code}")
        return _read(response)


class _WorthAnother(Exception):
    """A temporary failure."""


def _read(response: httpx.Response) -> str:
    if len(response.content) > _ANSWER_BYTES_MAX:
        raise ToolFailed("its answer is too long")
    try:
        answer: Any = read_json(response)
        said = answer["choices"][0]["message"]["content"]
    except (ValueError, LookupError, TypeError):
        raise _WorthAnother("its answer is not a chat completion") from None
    if not isinstance(said, str):
        raise _WorthAnother("its answer has no text")
    return said


def _authorize(authorization: str) -> dict[str, str]:
    if not authorization:
        return {}
    return {"authorization": authorization if " " in authorization else f"Bearer {authorization}"}
