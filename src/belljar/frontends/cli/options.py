"""Options that several commands share, and loading the settings they affect.

Imported for every command, including `--help` and `--version`, hence the late imports.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from belljar.contract.errors import InvalidSettings

if TYPE_CHECKING:
    from belljar.settings import Settings


def define_common(parser: argparse.ArgumentParser) -> None:
    """Add the options accepted both before and after a command's name; the parser must have `add_help=False`."""
    common = parser.add_argument_group("common options")
    common.add_argument("-h", "--help", action="help", help="show this help and exit")
    common.add_argument("--config", metavar="FILE", default=argparse.SUPPRESS, help="read settings from this TOML file")
    common.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help="show logs and tracebacks")


def add_action(actions: Any, name: str, summary: str) -> argparse.ArgumentParser:
    """Add a subcommand with the common options to `actions`, which `add_subparsers` returned."""
    action: argparse.ArgumentParser = actions.add_parser(name, help=summary, add_help=False)
    define_common(action)
    return action


def define_walls(parser: argparse._ArgumentGroup | argparse.ArgumentParser) -> None:
    from belljar.settings import WALL_NAMES

    def read(name: str) -> str:
        if name not in WALL_NAMES:
            known = ", ".join(WALL_NAMES)
            raise argparse.ArgumentTypeError(f"unknown wall {name!r}; choose from: {known}")
        return name

    parser.add_argument(
        "--without-wall",
        metavar="NAME",
        type=read,
        action="append",
        default=[],
        help=f"run without this isolation layer (repeatable): {', '.join(WALL_NAMES)}",
    )


def define_given(group: argparse._ArgumentGroup) -> None:
    """Add what a program or session is given: environment variables, files, packages and network access.

    The user of the command is the operator, so --network also turns on `network.offered`.
    """
    group.add_argument("--env", metavar="NAME=VALUE", action="append", default=[], help="set an environment variable")
    group.add_argument(
        "--file",
        metavar="LOCAL[:PATH]",
        action="append",
        default=[],
        help="copy a file into the work directory, under its own name or as PATH",
    )
    group.add_argument("--environment", metavar="NAME", default="default", help="guest environment (see belljar env)")
    group.add_argument("--network", action="store_true", help="allow internet access within the settings' limits")


def define_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def define_set(parser: argparse.ArgumentParser, example: str) -> None:
    parser.add_argument(
        "--set",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help=f"any other setting, such as {example} (repeatable)",
    )


def read_set(options: argparse.Namespace) -> dict[str, Any]:
    """The settings given with --set, by dotted name.

    Raises:
        InvalidSettings: one has no value.
    """
    flags = {}
    for each in options.set:
        name, equals, value = each.partition("=")
        if not equals:
            raise InvalidSettings(f"--set takes NAME=VALUE, not {each!r}")
        flags[name.strip()] = value.strip()
    return flags


def load_settings(options: argparse.Namespace) -> Settings:
    """Load the settings, apply this command line's options, and set up logging.

    Raises:
        InvalidSettings: a file, an environment variable or a flag is invalid.
    """
    _set_up_logging(is_debugging="debug" in options)
    return load_with_flags(options, {"network.offered": True} if getattr(options, "network", False) else {})


def load_with_flags(
    options: argparse.Namespace, flags: Mapping[str, Any], *, takes_familiar_names: bool = False
) -> Settings:
    """Load the settings, and apply `flags`, by dotted name, and the isolation layers that the command line gives up.

    Raises:
        InvalidSettings: a file, an environment variable or a flag is invalid.
    """
    from pathlib import Path

    from belljar.settings import load

    path = Path(options.config) if "config" in options else None
    settings = load(path, flags=flags, takes_familiar_names=takes_familiar_names)
    walls = getattr(options, "without_wall", None)
    if not walls:
        return settings
    given_up = tuple(dict.fromkeys((*settings.jail.without_walls, *walls)))
    flags = {**flags, "jail.without_walls": given_up}
    return load(path, flags=flags, takes_familiar_names=takes_familiar_names)


def _set_up_logging(is_debugging: bool) -> None:
    """Log errors only, unless --debug is given: the engine's other messages are for server operators."""
    import logging

    logging.basicConfig(
        level=logging.DEBUG if is_debugging else logging.ERROR,
        format="belljar: %(name)s: %(message)s" if is_debugging else "belljar: %(message)s",
    )
