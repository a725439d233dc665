"""`belljar config show`: prints every setting with its value and source, as a valid TOML settings file."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from belljar.frontends.cli import terminal
from belljar.frontends.cli.options import define_json, load_settings
from belljar.settings import Settings, familiar_names, load, names

_SECRET = ("_key", "_token", "_password", "authorization")  # endings of the names of secret settings
_MARKS = {"headers": ":", "env": "="}  # list settings whose elements hold a secret after this separator
_USER = re.compile(r"//[^/@]*@")  # user name and password in a URL
_HIDDEN = "(set, not shown)"
_BARE = re.compile(r"[A-Za-z0-9_-]+")  # a TOML key that needs no quotes


def define(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=["show"], help="print every setting with its source")
    parser.add_argument(
        "--for-serve",
        action="store_true",
        help="read the settings as `belljar serve` does, including variables such as HOST, PORT, DEBUG and API_KEY",
    )
    define_json(parser)
    parser.epilog = (
        "Later sources override earlier ones: defaults, the --config file, environment variables, flags.\n"
        "The environment variable of pool.max_running is BELLJAR_POOL_MAX_RUNNING."
    )


def execute(options: argparse.Namespace) -> int:
    settings = load_settings(options)
    if options.for_serve:
        settings = load(Path(options.config) if "config" in options else None, takes_familiar_names=True)
    else:
        _warn_about_unread()
    values = _flatten(settings)
    sources = {name: settings.provenance.get(".".join(name), "default") for name in values}
    if options.json:
        tree = {".".join(name): {"value": values[name], "source": sources[name]} for name in values}
        print(json.dumps(tree, indent=2))
    else:
        sys.stdout.write(_as_toml(values, sources))
    return 0


def _warn_about_unread() -> None:
    """Warn about variables that only `belljar serve` reads, on standard error: standard output must stay valid TOML."""
    unread = familiar_names(os.environ)
    if unread:
        verb, pronoun = ("is", "it") if len(unread) == 1 else ("are", "them")
        terminal.note(
            f"{', '.join(unread)} {verb} set, but only `belljar serve` reads {pronoun}; "
            "see `belljar config show --for-serve`"
        )


def _flatten(settings: Settings) -> dict[tuple[str, ...], Any]:
    """All settings as JSON values; the keys are the parts of their dotted names."""
    found: dict[tuple[str, ...], Any] = {}
    for name in names():
        value: Any = settings
        for part in name.split("."):
            value = getattr(value, part)
        found[tuple(name.split("."))] = value
    found.update(_named(settings, ()))
    return {name: _show(name[-1], value) for name, value in found.items()}


def _named(node: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The settings in tables with user-chosen names: environments, tool servers, models, language roots."""
    for each in dataclasses.fields(node):
        value, here = getattr(node, each.name), (*path, each.name)
        if here == ("provenance",):
            continue
        if dataclasses.is_dataclass(value):
            yield from _named(value, here)
        elif isinstance(value, Mapping):
            for own, one in value.items():
                if not dataclasses.is_dataclass(one):
                    yield (*here, own), one
                    continue
                for attribute in dataclasses.fields(one):
                    yield (*here, own, attribute.name), getattr(one, attribute.name)


def _show(name: str, value: Any) -> Any:
    """The value as JSON, with secrets hidden."""
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple):
        mark = _MARKS.get(name)
        return [f"{each.partition(mark)[0]}{mark}{_HIDDEN}" if mark and mark in each else each for each in value]
    if value and name.endswith(_SECRET):
        return _HIDDEN
    return _USER.sub(f"//{_HIDDEN}@", value) if name.endswith("url") else value


def _as_toml(values: dict[tuple[str, ...], Any], sources: dict[tuple[str, ...], str]) -> str:
    lines = []
    section: tuple[str, ...] = ()
    for name, value in values.items():
        if name[:-1] != section:
            section = name[:-1]
            lines += ["", f"[{'.'.join(_key(part) for part in section)}]"]
        line = f"{name[-1]} = {json.dumps(value, ensure_ascii=False)}"
        if _HIDDEN in line:
            line = f"# {line}"  # commented out: if read back, the placeholder must not become the key
        lines.append(f"{line:<48}  # {sources[name]}")
    return "\n".join(lines) + "\n"


def _key(part: str) -> str:
    return part if _BARE.fullmatch(part) else json.dumps(part, ensure_ascii=False)
