"""Options that several commands share, and the settings they lead to."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

from belljar.settings import WALL_NAMES, Settings, load


def define_walls(parser: argparse._ArgumentGroup | argparse.ArgumentParser) -> None:
    """Add --without-wall."""
    parser.add_argument(
        "--without-wall",
        metavar="NAME",
        action="append",
        default=[],
        help=f"do without this wall, knowingly (again for more): {', '.join(WALL_NAMES)}",
    )


def define_json(parser: argparse.ArgumentParser) -> None:
    """Add --json."""
    parser.add_argument("--json", action="store_true", help="print JSON instead")


def load_settings(options: argparse.Namespace) -> Settings:
    """The settings with what this command line changes, and logging to match.

    Raises:
        InvalidSettings: a file, a variable or a flag makes no sense.
    """
    _set_up_logging(is_debugging="debug" in options)
    path = Path(options.config) if "config" in options else None
    settings = load(path)
    walls = getattr(options, "without_wall", [])
    if walls:
        given_up = tuple(dict.fromkeys((*settings.jail.without_walls, *walls)))
        settings = load(path, flags={"jail.without_walls": given_up})
    return settings


def _set_up_logging(is_debugging: bool) -> None:
    """What the engine logs is for those who run servers; here only trouble is worth a line."""
    logging.basicConfig(
        level=logging.DEBUG if is_debugging else logging.ERROR,
        format="belljar: %(name)s: %(message)s" if is_debugging else "belljar: %(message)s",
    )
