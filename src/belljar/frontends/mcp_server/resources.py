"""What can be read: the environments that programs run in."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from belljar.contract.errors import NotFound
from belljar.environments import Environments
from belljar.frontends.mcp_server.call import Call
from belljar.frontends.mcp_server.languages import describe_languages

Json = dict[str, Any]

ENVIRONMENTS = "sandbox://environments"

LISTED: list[Json] = [
    {
        "uri": ENVIRONMENTS,
        "name": "environment_details",
        "title": "Environments",
        "description": "What programs can use, by language: the image or environment, and the installed libraries.",
        "mimeType": "text/plain",
    }
]


#: Resources whose address has a part to fill in.
TEMPLATES: list[Json] = []


async def read(call: Call, uri: str) -> Json:
    """Raises NotFound when there is nothing at `uri`."""
    if uri == ENVIRONMENTS:
        text = json.dumps(await _describe_environments(call), indent=2)
        return {"contents": [{"uri": uri, "mimeType": "text/plain", "text": text}]}
    raise NotFound(f"there is no resource {uri[:200]!r}; resources/list names what there is")


async def _describe_environments(call: Call) -> Json:
    """The shape that clients of code-sandbox-mcp know: each language with its image and libraries."""
    found: Json = {}
    for language in await describe_languages(call.host.environments):
        if language["available"]:
            name = call.offer.environment_of(language["name"])
            libraries = (
                await asyncio.to_thread(_packages, call.host.environments, name) if language["name"] == "python" else []
            )
            found[language["name"]] = {"image": name, "version": language["version"], "installed_libraries": libraries}
    return found


def _packages(environments: Environments, name: str) -> list[str]:
    environment = environments.find(name)
    return [] if environment is None else [package for package, _ in environment.packages]
