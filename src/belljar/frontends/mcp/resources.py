"""MCP resources (environments, sessions, files of sessions), and the prompt that teaches a model to print results."""

from __future__ import annotations

import asyncio
import json
import urllib.parse

from belljar.contract.errors import NotFound
from belljar.environments import Environments
from belljar.frontends.languages import describe_languages
from belljar.frontends.mcp.tool_call import Call, Json, mime_of, resource_contents

ENVIRONMENTS = "sandbox://environments"

RESOURCES: list[Json] = [
    {
        "uri": ENVIRONMENTS,
        "name": "environment_details",
        "title": "Environments",
        "description": "What programs can use, by language: the image or environment, and the installed libraries.",
        "mimeType": "text/plain",
    }
]


#: Resources whose address contains parameters.
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


async def read_resource(call: Call, uri: str) -> Json:
    """Raises NotFound if `uri` names no resource."""
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
    raise NotFound(f"unknown resource {uri[:200]!r}; resources/list names those that exist")


async def _describe_environments(call: Call) -> Json:
    """In the form that clients of code-sandbox-mcp know: each language with its image and libraries."""
    found: Json = {}
    for language in await describe_languages(call.host.settings, call.host.environments):
        if language["available"]:
            name = call.environment_of(language["name"])
            libraries = (
                await asyncio.to_thread(_packages, call.host.environments, name) if language["name"] == "python" else []
            )
            found[language["name"]] = {"image": name, "version": language["version"], "installed_libraries": libraries}
    return found


def _packages(environments: Environments, name: str) -> list[str]:
    environment = environments.find(name)
    return [] if environment is None else [package for package, _ in environment.packages]


PROMPT = "code_execution_prompt"

PROMPTS: list[Json] = [
    {
        "name": PROMPT,
        "title": "Solve it with code",
        "description": "How to work with the sandbox: print results, keep state in a session, get plots and files.",
        "arguments": [{"name": "task", "description": "what is to be solved", "required": False}],
    }
]

_LESSON = """\
You can run code in a sandbox. How to get results out of it:

- Only what a program prints comes back. End with print(...) of every value you need; a bare expression shows nothing, \
except as the last line of a cell in a session.
- Print little: summaries, heads of tables, the numbers asked for. Long output is cut.
- Each run starts afresh. For work in several steps call open_session once and pass its session_id to run_code: \
variables, imports and files stay. branch_session copies a live session, so you can try two ways from one state.
- Figures come back as images by themselves: draw with matplotlib and call plt.show(), or leave the figure open.
- Write files into the current directory and name them in `artifacts` to get them back.
- There is no network unless the operator allowed it, and nothing can be installed. sandbox://environments lists \
the libraries that are there.
- When a program fails, read the last line of its stderr, fix that, and run it again; do not guess the result.
"""


def get_prompt(name: str, arguments: dict[str, str] | None) -> Json:
    """Raises NotFound if no prompt has that name."""
    if name != PROMPT:
        raise NotFound(f"unknown prompt {name[:100]!r}; choose {PROMPT}")
    task = (arguments or {}).get("task", "").strip()
    text = _LESSON + (f"\nThe task: {task}\n" if task else "")
    return {
        "description": PROMPTS[0]["description"],
        "messages": [{"role": "user", "content": {"type": "text", "text": text}}],
    }
