"""Options that several commands share, and the settings they lead to.

Imported in front of every command, `--help` and `--version` included, hence the late imports.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from belljar.settings import Settings


def define_common(parser: argparse.ArgumentParser) -> None:
    """Options that are understood before and after a command's name; the parser was made without --help."""
    common = parser.add_argument_group("common options")
    common.add_argument("-h", "--help", action="help", help="show this and exit")
    common.add_argument("--config", metavar="FILE", default=argparse.SUPPRESS, help="read settings from this TOML file")
    common.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help="show logs and tracebacks")


def define_walls(parser: argparse._ArgumentGroup | argparse.ArgumentParser) -> None:
    """Add --without-wall."""
    from belljar.settings import WALL_NAMES

    def read(name: str) -> str:
        if name not in WALL_NAMES:
            known = ", ".join(WALL_NAMES)
            raise argparse.ArgumentTypeError(f"there is no wall {name!r} that can be given up; these can: {known}")
        return name

    parser.add_argument(
        "--without-wall",
        metavar="NAME",
        type=read,
        action="append",
        default=[],
        help=f"do without this wall, knowingly (again for more): {', '.join(WALL_NAMES)}",
    )


def define_network(parser: argparse._ArgumentGroup | argparse.ArgumentParser) -> None:
    """Add --network: whoever types it is the operator, and offers what he asks for."""
    parser.add_argument("--network", action="store_true", help="let it reach the internet, as the settings allow")


def define_json(parser: argparse.ArgumentParser) -> None:
    """Add --json."""
    parser.add_argument("--json", action="store_true", help="print JSON instead")


def load_settings(options: argparse.Namespace) -> Settings:
    """The settings with what this command line changes, and logging to match.

    Raises:
        InvalidSettings: a file, a variable or a flag makes no sense.
    """
    from pathlib import Path

    from belljar.settings import load

    _set_up_logging(is_debugging="debug" in options)
    path = Path(options.config) if "config" in options else None
    flags: dict[str, object] = {"network.offered": True} if getattr(options, "network", False) else {}
    settings = load(path, flags=flags)
    walls = getattr(options, "without_wall", [])
    if walls:
        given_up = tuple(dict.fromkeys((*settings.jail.without_walls, *walls)))
        settings = load(path, flags={**flags, "jail.without_walls": given_up})
    return settings


def _set_up_logging(is_debugging: bool) -> None:
    """What the engine logs is for those who run servers; here only trouble is worth a line."""
    import logging

    logging.basicConfig(
        level=logging.DEBUG if is_debugging else logging.ERROR,
        format="belljar: %(name)s: %(message)s" if is_debugging else "belljar: %(message)s",
    )
