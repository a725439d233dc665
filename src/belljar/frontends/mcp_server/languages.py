"""Which languages can be run here, as the native API tells it."""

from __future__ import annotations

import asyncio
from typing import Any

from belljar.engine.admission import offered_languages
from belljar.environments import Environments


async def describe_languages(environments: Environments) -> list[dict[str, Any]]:
    """Each with its version, or with how to install it."""
    version = await asyncio.to_thread(_python_version, environments)
    return [
        {
            "name": name,
            "title": name.capitalize(),
            "aliases": list(aliases),
            "available": version is not None,
            "version": version,
            "install": None if version else "belljar env create default",
        }
        for name, aliases in offered_languages().items()
    ]


def _python_version(environments: Environments) -> str | None:
    for name in ("default", *environments.known()):
        environment = environments.find(name)
        if environment is not None:
            return environment.version
    return None
