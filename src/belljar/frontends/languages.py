"""The languages that can be run here, as the native API and MCP list them."""

from __future__ import annotations

import asyncio
from typing import Any

from belljar.environments import Environments
from belljar.settings import Settings


async def describe_languages(settings: Settings, environments: Environments) -> list[dict[str, Any]]:
    """Each with its version, or with how to install it."""

    def describe_all() -> list[dict[str, Any]]:
        from belljar.languages.listing import describe  # reads thirty files, and few servers need them

        return [each.as_json() for each in describe(settings, _python_version(environments))]

    return await asyncio.to_thread(describe_all)


def _python_version(environments: Environments) -> str | None:
    for name in ("default", *environments.known()):
        environment = environments.find(name)
        if environment is not None:
            return environment.version
    return None
