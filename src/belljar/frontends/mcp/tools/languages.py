"""The tool list_languages."""

from __future__ import annotations

import msgspec

from belljar.frontends.languages import describe_languages
from belljar.frontends.mcp.tool_call import Call, Json, Tool
from belljar.frontends.mcp.tools.run import GROUP


class Nothing(msgspec.Struct, forbid_unknown_fields=True):
    """No arguments."""


async def list_languages(call: Call, given: Nothing) -> Json:
    languages = await describe_languages(call.host.settings, call.host.environments)
    lines = [
        f"{each['name']} {each['version'] or ''}".rstrip()
        + (f" (also {', '.join(each['aliases'])})" if each["aliases"] else "")
        for each in languages
        if each["available"]
    ]
    return call.result("\n".join(lines) or "none", {"languages": languages})


LANGUAGES_SCHEMA: Json = {
    "type": "object",
    "properties": {
        "languages": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "name": {"type": "string"},
                    "title": {"type": "string"},
                    "aliases": {"type": "array", "items": {"type": "string"}},
                    "available": {"type": "boolean"},
                    "version": {"type": ["string", "null"]},
                    "install": {"type": ["string", "null"]},
                },
                "required": ["name", "available"],
            },
        }
    },
    "required": ["languages"],
}

LIST_LANGUAGES = Tool(
    name="list_languages",
    title="List languages",
    description="List the languages that run_code can run here, with their versions and other names.",
    takes=Nothing,
    call=list_languages,
    group=GROUP,
    gives=LANGUAGES_SCHEMA,
    is_read_only=True,
    is_idempotent=True,
)
