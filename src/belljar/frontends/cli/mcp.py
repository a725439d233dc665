"""`belljar mcp`: the MCP server that an assistant starts by itself, on standard input and output."""

from __future__ import annotations

import argparse
import asyncio
import os
from pathlib import Path
from typing import Any

from belljar.contract.errors import InvalidSettings
from belljar.frontends.cli.options import define_walls
from belljar.settings import Settings, load


def define(parser: argparse.ArgumentParser) -> None:
    """Options of `belljar mcp`."""
    parser.add_argument(
        "--tools", metavar="A,B", help="only these tools, or groups: native, safe-execute, code-sandbox, kernels"
    )
    parser.add_argument(
        "--output",
        choices=("plain", "structured"),
        help="results as text alone, or also as JSON by a schema (the default)",
    )
    parser.add_argument(
        "--pass-through-env",
        metavar="A,B",
        help="variables of this process that programs get too; they get no others",
    )
    parser.add_argument("--python-image", metavar="IMAGE", help="run Python in this container image")
    parser.add_argument("--js-image", metavar="IMAGE", help="run JavaScript in this container image")
    parser.add_argument("--network", action="store_true", default=None, help="let programs reach the network")
    parser.add_argument(
        "--set",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="any other setting, such as default_limits.wall_seconds=60 (again for more)",
    )
    define_walls(parser)
    parser.epilog = (
        "The client speaks first, on standard input; logs go to standard error. CONTAINER_IMAGE together with\n"
        "CONTAINER_LANGUAGE (python or javascript) does what --python-image or --js-image does."
    )


def execute(options: argparse.Namespace) -> int:
    """Serve until the client leaves."""
    settings = _load(options)
    set_up_logging(is_debugging="debug" in options)
    run(settings)
    return 0


def run(settings: Settings, **named: Any) -> None:
    """Serve one client on standard input and output; `named` changes what the offer says of itself."""
    from belljar.frontends.mcp_server.choices import offer_of
    from belljar.frontends.mcp_server.stdio import serve

    asyncio.run(serve(settings, offer_of(settings, os.environ, **named)))


def set_up_logging(*, is_debugging: bool) -> None:
    """Everything that is said goes to standard error: standard output is the protocol's."""
    import logging

    logging.basicConfig(
        level=logging.DEBUG if is_debugging else logging.WARNING, format="belljar: %(name)s: %(message)s", force=True
    )
    logging.getLogger("belljar").setLevel(logging.DEBUG if is_debugging else logging.INFO)


def _load(options: argparse.Namespace) -> Settings:
    flags: dict[str, Any] = {}
    for each in options.set:
        name, equals, value = each.partition("=")
        if not equals:
            raise InvalidSettings(f"--set takes NAME=VALUE, not {each!r}")
        flags[name.strip()] = value.strip()
    for name, value in (
        ("mcp.tools", options.tools),
        ("mcp.output", options.output),
        ("mcp.pass_through_env", options.pass_through_env),
        ("mcp.python_image", options.python_image),
        ("mcp.javascript_image", options.js_image),
        ("mcp.network", options.network),
    ):
        if value is not None:
            flags[name] = value
    path = Path(options.config) if "config" in options else None
    settings = load(path, flags=flags)
    if options.without_wall:
        flags["jail.without_walls"] = tuple(dict.fromkeys((*settings.jail.without_walls, *options.without_wall)))
        settings = load(path, flags=flags)
    return settings
