"""`belljar serve`: starts the HTTP server."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import Any

from belljar.contract.errors import InvalidSettings
from belljar.frontends.cli.options import define_walls
from belljar.settings import Settings, load


def define_address(parser: argparse.ArgumentParser) -> None:
    """Add the options shared by `belljar serve` and `belljar proxy`."""
    parser.add_argument(
        "--host", metavar="ADDRESS", help="address to listen on; addresses other than loopback require a key"
    )
    parser.add_argument("--port", metavar="N", type=int, help="port to listen on; 0 picks a free port")
    parser.add_argument(
        "--api-key",
        metavar="KEY",
        help="a single key for all clients; visible in the process list, so prefer the key file",
    )
    parser.add_argument(
        "--set",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="any other setting, such as pool.max_running=16 (repeatable)",
    )
    parser.add_argument(
        "--xmaster-config",
        metavar="DIR",
        help="read the configuration files of X-Master's code server from this directory",
    )


def define(parser: argparse.ArgumentParser) -> None:
    define_address(parser)
    parser.add_argument(
        "--listen",
        metavar="DIALECT:PORT",
        action="append",
        help="serve another system's API on a separate port, such as xmaster:30008 (repeatable)",
    )
    parser.add_argument(
        "--backend", choices=("local", "container"), help="where programs run; container requires Docker or Podman"
    )
    parser.add_argument("--image", "--python-image", metavar="IMAGE", help="container image for Python")
    parser.add_argument("--js-image", metavar="IMAGE", help="container image for the environment 'javascript'")
    parser.add_argument(
        "--grace", metavar="SECONDS", type=float, help="time for running programs to finish on shutdown"
    )
    define_walls(parser)
    parser.epilog = (
        "Settings come from --config, environment variables (BELLJAR_SERVER_PORT, …; also HOST, PORT, DEBUG, API_KEY,\n"
        "MAX_KERNELS, KERNEL_TIMEOUT, MAX_EXECUTION_TIME and MAX_MEMORY_MB) and these options; later ones win.\n"
        "SIGTERM stops gracefully; a second SIGTERM stops immediately."
    )


def execute(options: argparse.Namespace) -> int:
    """Serve until a signal stops it."""
    settings = load_server_settings(options)
    # Imported late: other commands import this module, but not the server.
    from belljar.frontends.api.server import serve
    from belljar.telemetry import Log, set_up_logging

    log = Log(log_format=settings.server.log_format)
    set_up_logging(log, is_debugging=settings.server.debug)
    try:
        run(serve(settings, log))
    finally:
        log.close()
    return 0


def load_server_settings(options: argparse.Namespace) -> Settings:
    """Load the settings and apply this command line's options.

    Raises:
        InvalidSettings: a file, an environment variable or a flag is invalid.
    """
    flags: dict[str, Any] = {}
    if options.xmaster_config:
        from belljar.frontends.cli.xmaster_config import read_xmaster_config

        flags.update(read_xmaster_config(Path(options.xmaster_config)))
    for each in options.set:
        name, equals, value = each.partition("=")
        if not equals:
            raise InvalidSettings(f"--set takes NAME=VALUE, not {each!r}")
        flags[name.strip()] = value.strip()
    for name, value in (
        ("server.host", options.host),
        ("server.port", options.port),
        ("server.api_key", options.api_key),
        ("server.grace_seconds", getattr(options, "grace", None)),
        ("server.listen", tuple(getattr(options, "listen", None) or ()) or None),
        ("backend", getattr(options, "backend", None)),
        ("container.image", getattr(options, "image", None)),
        ("container.images", (f"javascript={options.js_image}",) if getattr(options, "js_image", None) else None),
    ):
        if value is not None:
            flags[name] = value
    if "debug" in options:
        flags["server.debug"] = True
    path = Path(options.config) if "config" in options else None
    settings = load(path, flags=flags, takes_familiar_names=True)
    if getattr(options, "without_wall", None):
        flags["jail.without_walls"] = tuple(dict.fromkeys((*settings.jail.without_walls, *options.without_wall)))
        settings = load(path, flags=flags, takes_familiar_names=True)
    return settings


def run(main: Any) -> None:
    """Run a coroutine on uvloop if it is installed, else on asyncio's event loop."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(main)
    else:
        uvloop.run(main)
