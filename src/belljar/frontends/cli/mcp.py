"""`belljar mcp`: the MCP server that an assistant starts as a child process, on standard input and output."""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import os
import sys
from collections.abc import Mapping
from typing import Any

from belljar.contract.errors import InvalidSettings
from belljar.frontends.cli.options import define_set, define_walls, load_with_flags, read_set
from belljar.frontends.mcp.config import familiar_image, images_of
from belljar.settings import Settings


def define(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tools",
        metavar="A,B",
        help="offer only these tools or groups (native, safe-execute, code-sandbox, kernels); default: all. Most "
        "clients need only native",
    )
    parser.add_argument(
        "--output",
        choices=("plain", "structured"),
        help="results as text only, or also as JSON with a schema (default)",
    )
    parser.add_argument(
        "--pass-through-env",
        metavar="A,B",
        help="pass these environment variables of this process on to programs; no others are passed",
    )
    parser.add_argument("--python-image", metavar="IMAGE", help="run Python in this container image")
    parser.add_argument("--js-image", metavar="IMAGE", help="run JavaScript in this container image")
    parser.add_argument("--network", action="store_true", default=None, help="let programs reach the network")
    define_set(parser, "default_limits.wall_seconds=60")
    parser.add_argument(
        "--like",
        choices=("code-sandbox",),
        help="present the name and the tools of this other server, as the command code-sandbox-mcp does",
    )
    define_walls(parser)
    parser.epilog = (
        'Assistants start this command; put this into their settings: "command": "belljar", "args": ["mcp",\n'
        '"--tools", "native"].\n'
        "The client sends the first message on standard input; logs go to standard error. CONTAINER_IMAGE with\n"
        "CONTAINER_LANGUAGE (python or javascript) is the same as --python-image or --js-image; BACKEND (docker or\n"
        "podman) selects the container engine. VERBOSE=true is the same as --debug."
    )


def execute(options: argparse.Namespace) -> int:
    """Serve until the client closes standard input."""
    from belljar.frontends.mcp.config import CODE_SANDBOX, configure
    from belljar.frontends.mcp.stdio import serve
    from belljar.frontends.mcp.tool_call import select
    from belljar.frontends.mcp.tools import ALL

    if importlib.util.find_spec("mcp") is None:
        raise InvalidSettings("the MCP SDK is not installed; add it with: pip install 'belljar[mcp]'")
    settings = _load(options)
    config = configure(settings, os.environ, **(CODE_SANDBOX if options.like else {}))
    select(ALL, config.tools)  # reports an unknown tool before the SDK is imported
    _set_up_logging(is_debugging="debug" in options or os.environ.get("VERBOSE", "").lower() in ("1", "true", "yes"))
    if sys.stdin.isatty():
        print(
            "belljar: waiting for an MCP client on standard input. Assistants start this command; "
            "press Ctrl-C to quit.",
            file=sys.stderr,
        )
    asyncio.run(serve(settings, config))
    return 0


def be_code_sandbox() -> int:
    """Entry point of the console script `code-sandbox-mcp`."""
    from belljar.frontends.cli import main

    return main(["mcp", "--like", "code-sandbox", *sys.argv[1:]])


def _set_up_logging(*, is_debugging: bool) -> None:
    """Log to standard error; standard output carries the protocol."""
    import logging

    logging.basicConfig(
        level=logging.DEBUG if is_debugging else logging.WARNING, format="belljar: %(name)s: %(message)s", force=True
    )
    logging.getLogger("belljar").setLevel(logging.DEBUG if is_debugging else logging.INFO)


def _load(options: argparse.Namespace) -> Settings:
    flags = read_set(options)
    if options.like and options.tools is None:
        flags["mcp.tools"] = options.like
    for name, value in (
        ("mcp.tools", options.tools),
        ("mcp.output", options.output),
        ("mcp.pass_through_env", options.pass_through_env),
        ("mcp.python_image", options.python_image),
        ("mcp.javascript_image", options.js_image),
        ("mcp.network", options.network),
        ("network.offered", options.network),  # the user of this command is the operator
    ):
        if value is not None:
            flags[name] = value
    settings = load_with_flags(options, flags)
    if images := {**images_of(settings), **familiar_image(os.environ)}:
        settings = load_with_flags(options, {**_container_flags(images), **flags})
    return settings


def _container_flags(images: Mapping[str, str]) -> dict[str, Any]:
    """Settings that run programs in these images; the Python image, or else the first one, is the default."""
    engine = os.environ.get("BACKEND", "")
    return {
        "backend": "container",
        "container.image": images.get("python") or next(iter(images.values())),
        "container.allowed_images": tuple(images.values()),
        **({"container.engine": engine} if engine else {}),
    }
