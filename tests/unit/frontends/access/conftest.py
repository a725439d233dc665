"""The fixtures of a real server."""

from api_server import command, server, start

__all__ = ["command", "server", "start"]
