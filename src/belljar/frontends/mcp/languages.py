"""Which languages can be run here, as the native API tells it."""

from __future__ import annotations

import asyncio
from typing import Any

from belljar.environments import Environments
from belljar.settings import Settings


async def describe_languages(settings: Settings, environments: Environments) -> list[dict[str, Any]]:
    """Each with its version, or with how to install it."""
    return await asyncio.to_thread(_describe, settings, environments)


def _describe(settings: Settings, environments: Environments) -> list[dict[str, Any]]:
    from belljar.languages.listing import describe  # reads thirty files: not every server is asked for them

    return [each.as_json() for each in describe(settings, _python_version(environments))]


def _python_version(environments: Environments) -> str | None:
    for name in ("default", *environments.known()):
        environment = environments.find(name)
        if environment is not None:
            return environment.version
    return None
