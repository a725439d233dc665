"""What can be read: the environments that programs run in, sessions, and the files of sessions."""

from __future__ import annotations

import asyncio
import json
import urllib.parse
from typing import Any

from belljar.contract.errors import NotFound
from belljar.environments import Environments
from belljar.frontends.mcp.languages import describe_languages
from belljar.frontends.mcp.results import mime_of, resource_contents
from belljar.frontends.mcp.tool_call import Call

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
TEMPLATES: list[Json] = [
    {
        "uriTemplate": "session://{session_id}",
        "name": "session",
        "title": "A session",
        "description": "The state of one of your sessions: idle or busy, cells run, memory, when it expires.",
        "mimeType": "application/json",
    },
    {
        "uriTemplate": "session://{session_id}/files/{+path}",
        "name": "session_file",
        "title": "A file of a session",
        "description": "A file in a session's work directory.",
    },
]
_SESSION = "session://"


async def read(call: Call, uri: str) -> Json:
    """Raises NotFound when there is nothing at `uri`."""
    if uri == ENVIRONMENTS:
        text = json.dumps(await _describe_environments(call), indent=2)
        return {"contents": [{"uri": uri, "mimeType": "text/plain", "text": text}]}
    if uri.startswith(_SESSION):
        session_id, _, path = uri.removeprefix(_SESSION).partition("/files/")
        sessions = await call.sessions()
        if not path:
            state = json.dumps(sessions.get(call.caller.owner, session_id.rstrip("/")).as_json(), indent=2)
            return {"contents": [{"uri": uri, "mimeType": "application/json", "text": state}]}
        name = urllib.parse.unquote(path)
        content = await call.wait(sessions.read_file(call.caller.owner, session_id, name))
        return {"contents": [resource_contents(uri, content, mime_of(name))]}
    raise NotFound(f"there is no resource {uri[:200]!r}; resources/list names what there is")


async def _describe_environments(call: Call) -> Json:
    """The shape that clients of code-sandbox-mcp know: each language with its image and libraries."""
    found: Json = {}
    for language in await describe_languages(call.host.settings, call.host.environments):
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
