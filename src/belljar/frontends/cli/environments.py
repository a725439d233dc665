"""`belljar env`: lists, creates and removes guest environments, each a Python with the packages programs may use."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
from pathlib import Path
from typing import Any

from belljar.contract.errors import EnvironmentBroken
from belljar.environments import Environments
from belljar.frontends.cli import terminal
from belljar.frontends.cli.options import add_action, define_json, load_settings
from belljar.settings import EnvironmentSettings, Settings

_EPILOG = """\
An environment described in the settings needs no options: `belljar env create default`. Any other environment gets the
packages you name, or only the standard library. Modules named with --warm-import are imported ahead of time, so that
programs do not wait for them.

examples:
  belljar env list
  belljar env create science --package scikit-learn --package 'polars>=1' --warm-import sklearn
  belljar env create old --python 3.9
  belljar env create default --replace
  belljar env remove old
"""


def define(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    define_json(add_action(actions, "list", "list all built or configured environments"))
    create = add_action(actions, "create", "build an environment")
    create.add_argument("name", metavar="NAME")
    create.add_argument("--package", metavar="P", action="append", help="install this package (repeatable)")
    create.add_argument(
        "--python", metavar="X", help="Python to use: a path, a command name, or a version such as 3.12"
    )
    create.add_argument(
        "--warm-import", metavar="M", action="append", help="import this module ahead of time (repeatable)"
    )
    already_there = create.add_mutually_exclusive_group()
    already_there.add_argument("--replace", action="store_true", help="rebuild an existing environment")
    already_there.add_argument("--if-missing", action="store_true", help="do nothing if it exists")
    add_action(actions, "remove", "delete environments").add_argument("names", metavar="NAME", nargs="+")


def execute(options: argparse.Namespace) -> int:
    settings = load_settings(options)
    if options.action == "list":
        _list(settings, options.json)
    elif options.action == "create":
        _create(settings, options)
    else:
        environments = Environments(settings.state_dir, settings.environments)
        for name in options.names:
            environments.remove(name)
            print(f"removed environment {name!r}")
    return 0


def _create(settings: Settings, options: argparse.Namespace) -> None:
    spec = settings.environments.get(options.name, EnvironmentSettings(packages=(), warm_imports=()))
    spec = dataclasses.replace(
        spec,
        packages=spec.packages if options.package is None else tuple(options.package),
        python=spec.python if options.python is None else options.python,
        warm_imports=spec.warm_imports if options.warm_import is None else tuple(options.warm_import),
    )
    environments = Environments(settings.state_dir, {**settings.environments, options.name: spec})
    was_there = environments.find(options.name) is not None
    with terminal.progress() as report:
        if options.if_missing:
            built = environments.ensure(options.name, report)
        else:
            built = environments.create(options.name, spec, report, replace=options.replace)
    state = "already exists" if was_there and not options.replace else "is ready"
    print(f"environment {options.name!r} {state}: Python {built.version}, {len(built.packages)} packages")


def _list(settings: Settings, as_json: bool) -> None:
    rows = describe_all(settings)
    if as_json:
        print(json.dumps({"environments": rows}, indent=2))
        return
    terminal.draw_table(
        terminal.console(),
        f"Guest environments in {settings.state_dir / 'environments'}",
        ["name", "state", "Python", "size", "packages", "imported ahead"],
        [
            (
                row["name"],
                row["state"],
                row["python"] or "",
                f"{row['bytes'] / 1e6:.0f} MB" if row["bytes"] else "",
                row["detail"] or ", ".join(package["name"] for package in row["packages"]),
                ", ".join(row["warm_imports"]),
            )
            for row in rows
        ],
    )


def describe_all(settings: Settings) -> list[dict[str, Any]]:
    """Every environment that is built or configured; `state` is ok, missing (not built yet) or broken."""
    environments = Environments(settings.state_dir, settings.environments)
    return [_describe(settings, environments, name) for name in environments.known()]


def _describe(settings: Settings, environments: Environments, name: str) -> dict[str, Any]:
    root = settings.state_dir / "environments" / name
    row: dict[str, Any] = {"name": name, "state": "ok", "python": None, "packages": [], "warm_imports": []}
    row |= {"bytes": _size_bytes(root), "detail": ""}
    try:
        found = environments.require(name)
    except EnvironmentBroken as error:
        is_finished = (root / "environment.json").exists()
        return row | {"state": "broken" if is_finished else "missing", "detail": error.message}
    packages = [{"name": package, "version": version} for package, version in found.packages]
    return row | {"python": found.version, "packages": packages, "warm_imports": list(found.warm_imports)}


def _size_bytes(root: Path) -> int:
    """Disk usage; files that vanish during the walk are skipped."""
    total = 0
    for directory, _, names in os.walk(root):
        for name in names:
            try:
                total += os.lstat(f"{directory}/{name}").st_blocks * 512
            except OSError:
                continue
    return total
