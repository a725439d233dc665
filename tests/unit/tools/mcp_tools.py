"""A real MCP server: `mcp_tools.py stdio`, or `mcp_tools.py http PORT` or `sse PORT`.

If EXTRA_TOOL names an existing file, it has one more tool.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations

server = MCPServer("test tools")


@server.tool()
def add(a: int, b: int = 2) -> int:
    """Add two numbers."""
    return a + b


@server.tool(name="find-page")
def find_page(query: str, top_k: int = 3) -> dict[str, Any]:
    """Find pages about something.

    Args:
        query: what to look for
    """
    return {"organic": [f"{query} {number}" for number in range(top_k)]}


@server.tool()
def search(query: str, top_k: int = 2) -> str:
    """Find pages about something; like many servers, returns JSON as text."""
    return json.dumps({"organic": [query] * top_k})


@server.tool()
def fail() -> str:
    """Always fails."""
    raise ToolError("no luck today")


@server.tool()
def hang() -> None:
    """Never returns."""
    time.sleep(600)


@server.tool()
def die() -> None:
    """Kills the server."""
    os._exit(3)


def _die_the_first_time(marker: str) -> int:
    with Path(marker).open("a") as counted:
        counted.write("x")
    if Path(marker).stat().st_size == 1:
        os._exit(3)
    return Path(marker).stat().st_size


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def look(marker: str) -> int:
    """Declared read-only; kills the server the first time."""
    return _die_the_first_time(marker)


@server.tool(annotations=ToolAnnotations(idempotent_hint=True))
def put(marker: str) -> int:
    """Declared idempotent; kills the server the first time."""
    return _die_the_first_time(marker)


@server.tool()
def pay(marker: str) -> int:
    """Must not be called twice; kills the server the first time."""
    return _die_the_first_time(marker)


def extra() -> str:
    """An additional tool."""
    return "more"


@server.tool()
async def grow(context: Context) -> str:
    """Add a tool, and notify listeners of both kinds."""
    server.add_tool(extra)
    await context.notify_tools_changed()
    await context.session.send_tool_list_changed()
    return "grown"


@server.tool()
def flood() -> str:
    """Return ten megabytes."""
    return "x" * 10_000_000


@server.tool()
def whoami() -> dict[str, str]:
    """Return the Belljar variables of the server."""
    return {name: value for name, value in os.environ.items() if name.startswith("BELLJAR_")}


@server.tool()
def pid() -> int:
    """Return the pid of the server."""
    return os.getpid()


if __name__ == "__main__":
    if Path(os.environ.get("EXTRA_TOOL", "/nowhere")).exists():
        server.add_tool(extra)
    if sys.argv[1] == "stdio":
        server.run("stdio")
    elif sys.argv[1] == "http":
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[2]))
    else:
        server.run("sse", host="127.0.0.1", port=int(sys.argv[2]))
