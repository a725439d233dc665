"""`belljar config show`: every setting, its value and its source, as a TOML file one could start from."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Any

from belljar.frontends.cli import terminal
from belljar.frontends.cli.options import define_json, load_settings
from belljar.settings import EnvironmentSettings, Settings, familiar_names, load, names

_SECRET = ("_key", "_token", "_password")  # how the name of a setting ends that nobody should read over a shoulder
_HIDDEN = "(set, not shown)"


def define(parser: argparse.ArgumentParser) -> None:
    """Options of `belljar config`."""
    parser.add_argument("action", choices=["show"], help="print every setting with where it came from")
    parser.add_argument(
        "--for-serve",
        action="store_true",
        help="as `belljar serve` reads them, which alone knows HOST, PORT, DEBUG, API_KEY and their like",
    )
    define_json(parser)
    parser.epilog = (
        "Later sources win: defaults, the file given by --config, environment variables, flags.\n"
        "pool.max_running is BELLJAR_POOL_MAX_RUNNING in the environment."
    )


def execute(options: argparse.Namespace) -> int:
    """Print the settings."""
    settings = load_settings(options)
    if options.for_serve:
        settings = load(Path(options.config) if "config" in options else None, takes_familiar_names=True)
    else:
        _tell_what_is_not_read()
    values = _flatten(settings)
    sources = {name: settings.provenance.get(".".join(name), "default") for name in values}
    if options.json:
        tree = {".".join(name): {"value": values[name], "source": sources[name]} for name in values}
        print(json.dumps(tree, indent=2))
    else:
        sys.stdout.write(_as_toml(values, sources))
    return 0


def _tell_what_is_not_read() -> None:
    """On standard error: what is printed stays a settings file."""
    unread = familiar_names(os.environ)
    if unread:
        verb = "is set, but only" if len(unread) == 1 else "are set, but only"
        terminal.say(f"{', '.join(unread)} {verb} `belljar serve` reads that: belljar config show --for-serve")


def _flatten(settings: Settings) -> dict[tuple[str, ...], Any]:
    """Values as JSON knows them, by the parts of their names."""
    found: dict[tuple[str, ...], Any] = {}
    for name in names():
        value: Any = settings
        for part in name.split("."):
            value = getattr(value, part)
        found[tuple(name.split("."))] = _HIDDEN if value and name.endswith(_SECRET) else _plain(value)
    for environment, built_from in settings.environments.items():
        for each in dataclasses.fields(EnvironmentSettings):
            found["environments", environment, each.name] = _plain(getattr(built_from, each.name))
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    return list(value) if isinstance(value, tuple) else value


def _as_toml(values: dict[tuple[str, ...], Any], sources: dict[tuple[str, ...], str]) -> str:
    lines = []
    section: tuple[str, ...] = ()
    for name, value in values.items():
        if name[:-1] != section:
            section = name[:-1]
            lines += ["", f"[{'.'.join(_key(part) for part in section)}]"]
        line = f"{name[-1]} = {json.dumps(value, ensure_ascii=False)}"
        if value == _HIDDEN:
            line = f"# {name[-1]} is set, and not shown"  # a comment: read back, it must not become the key
        lines.append(f"{line:<48}  # {sources[name]}")
    return "\n".join(lines) + "\n"


def _key(part: str) -> str:
    return part if part.replace("-", "").replace("_", "").isalnum() else json.dumps(part)
