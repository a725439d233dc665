"""`belljar serve`: the HTTP server."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import Any

from belljar.contract.errors import InvalidSettings
from belljar.frontends.cli.options import define_walls
from belljar.settings import Settings, load


def define_address(parser: argparse.ArgumentParser) -> None:
    """Options of whatever serves HTTP."""
    parser.add_argument("--host", metavar="ADDRESS", help="where to listen; any address but loopback needs a key")
    parser.add_argument("--port", metavar="N", type=int, help="0 takes a free one")
    parser.add_argument(
        "--api-key",
        metavar="KEY",
        help="one key for everybody; others see it in the list of processes, so prefer a file",
    )
    parser.add_argument(
        "--set",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="any other setting, such as pool.max_running=16 (again for more)",
    )
    parser.add_argument(
        "--xmaster-config", metavar="DIR", help="read the configuration files of X-Master's code server from there"
    )


def define(parser: argparse.ArgumentParser) -> None:
    """Options of `belljar serve`."""
    define_address(parser)
    parser.add_argument(
        "--listen",
        metavar="DIALECT:PORT",
        action="append",
        help="another system's API on a port of its own, such as xmaster:30008 (again for more)",
    )
    parser.add_argument(
        "--backend", choices=("local", "container"), help="where programs run; container needs Docker or Podman"
    )
    parser.add_argument("--image", "--python-image", metavar="IMAGE", help="what the container back end runs Python in")
    parser.add_argument("--js-image", metavar="IMAGE", help="what it runs the environment 'javascript' in")
    parser.add_argument("--grace", metavar="SECONDS", type=float, help="for what runs when asked to stop")
    define_walls(parser)
    parser.epilog = (
        "Settings come from --config, then the environment (BELLJAR_SERVER_PORT, …; also HOST, PORT, DEBUG, API_KEY,\n"
        "MAX_KERNELS, KERNEL_TIMEOUT, MAX_EXECUTION_TIME and MAX_MEMORY_MB), then these options.\n"
        "SIGTERM stops gracefully; a second one at once."
    )


def execute(options: argparse.Namespace) -> int:
    """Serve until told to stop."""
    settings = load_server_settings(options)
    # Imported now: the other commands should not wait for a server they do not start.
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
    """The settings, with what this command line changes.

    Raises:
        InvalidSettings: a file, a variable or a flag makes no sense.
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
    """Run a coroutine to its end, on the fastest event loop there is."""
    try:
        import uvloop
    except ImportError:  # not everywhere to be had; only slower without
        asyncio.run(main)
    else:
        uvloop.run(main)
