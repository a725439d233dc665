"""`belljar proxy`: serves web search, web pages and PDFs to code servers that expect X-Master's API proxy."""

from __future__ import annotations

import argparse

from belljar.frontends.cli import serve as serve_command

_PORT = 1234


def define(parser: argparse.ArgumentParser) -> None:
    serve_command.define_address(parser)
    parser.epilog = (
        "The paths are /search, /read_pdf and /fetch_web; the settings are in [web].\n"
        "SIGTERM stops gracefully; a second SIGTERM stops immediately."
    )


def execute(options: argparse.Namespace) -> int:
    """Serve until a signal stops it."""
    if options.port is None:
        options.port = _PORT
    settings = serve_command.load_server_settings(options)
    from belljar.frontends.api.dialects.api_proxy.server import serve_proxy

    serve_command.serve_until_stopped(serve_proxy, settings)
    return 0
