"""A real MCP server: `mcp_tools.py stdio`, or `mcp_tools.py http PORT` or `sse PORT`."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

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
def fail() -> str:
    """Always fails."""
    raise ToolError("no luck today")


@server.tool()
def hang() -> None:
    """Takes for ever."""
    time.sleep(600)


@server.tool()
def die() -> None:
    """Ends the whole server."""
    os._exit(3)


@server.tool()
def flood() -> str:
    """Much."""
    return "x" * 10_000_000


@server.tool()
def whoami() -> dict[str, str]:
    """What the server was given."""
    return {name: value for name, value in os.environ.items() if name.startswith("BELLJAR_")}


@server.tool()
def pid() -> int:
    """Who answers."""
    return os.getpid()


if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        server.run("stdio")
    elif sys.argv[1] == "http":
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[2]))
    else:
        server.run("sse", host="127.0.0.1", port=int(sys.argv[2]))
