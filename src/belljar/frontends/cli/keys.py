"""`belljar key`: who may use the server, and how much of it. A running server follows at once."""

from __future__ import annotations

import argparse
import dataclasses
import json

from belljar.contract.errors import CallerError
from belljar.frontends.access.keys import Key, KeyFile, keys_path
from belljar.frontends.cli import terminal
from belljar.frontends.cli.options import define_json, load_settings


def define(parser: argparse.ArgumentParser) -> None:
    """Options of `belljar key`."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="create|list|revoke")
    create = actions.add_parser("create", help="make a key and print it, once")
    create.add_argument("name", help="how logs and limits call its holder")
    create.add_argument("--max-concurrent", metavar="N", type=int, help="programs at the same time")
    create.add_argument("--requests-per-minute", metavar="N", type=int)
    create.add_argument("--max-sessions", metavar="N", type=int, help="sessions open at the same time")
    create.add_argument(
        "--limit",
        metavar="NAME=NUMBER",
        action="append",
        default=[],
        help="the most a program may ask for, such as wall_seconds=30 or memory_mb=256 (again for more)",
    )
    create.add_argument("--network", action="store_true", help="may use the network, where the server has it")
    create.add_argument("--tools", action="store_true", help="may use tools, where the server has them")
    create.add_argument("--tool", metavar="NAME", action="append", default=[], help="may use this one (again for more)")
    define_json(create)
    define_json(actions.add_parser("list", help="show names and ceilings; never the keys"))
    revoke = actions.add_parser("revoke", help="refuse a key from now on")
    revoke.add_argument("name")
    define_json(revoke)


def execute(options: argparse.Namespace) -> int:
    """Do it."""
    file = KeyFile(keys_path(load_settings(options)))
    return {"create": _create, "list": _list, "revoke": _revoke}[options.action](file, options)


def _create(file: KeyFile, options: argparse.Namespace) -> int:
    text = file.create(
        Key(
            name=options.name,
            max_concurrent=options.max_concurrent,
            requests_per_minute=options.requests_per_minute,
            max_sessions=options.max_sessions,
            limits=dict(_read_limit(each) for each in options.limit),
            network=options.network,
            tools=options.tools or options.tool,
        )
    )
    if options.json:
        print(json.dumps({"name": options.name, "key": text}))
    else:
        print(text)
        terminal.note(f"this is the key of {options.name!r}; it is kept nowhere and cannot be shown again")
    return 0


def _list(file: KeyFile, options: argparse.Namespace) -> int:
    keys = file.read()
    if options.json:
        print(json.dumps([{**_public(key)} for key in keys], indent=2))
        return 0
    rows = [
        [
            key.name,
            key.created_at,
            str(key.max_concurrent or "–"),
            str(key.requests_per_minute or "–"),
            str(key.max_sessions or "–"),
            " ".join(f"{name}={value:g}" for name, value in key.limits.items()) or "–",
            " ".join([*(["network"] if key.network else []), *_name_tools(key)]) or "–",
        ]
        for key in keys
    ]
    columns = ["name", "created", "concurrent", "per minute", "sessions", "limits", "may use"]
    terminal.draw_table(terminal.console(), terminal.count(len(keys), "key"), columns, rows)
    return 0


def _name_tools(key: Key) -> list[str]:
    return (["tools"] if key.tools else []) if isinstance(key.tools, bool) else list(key.tools)


def _revoke(file: KeyFile, options: argparse.Namespace) -> int:
    file.revoke(options.name)
    if options.json:
        print(json.dumps({"name": options.name, "revoked": True}))
    else:
        terminal.note(f"the key of {options.name!r} is refused from now on")
    return 0


def _public(key: Key) -> dict[str, object]:
    return {name: value for name, value in dataclasses.asdict(key).items() if name != "digest"}


def _read_limit(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    try:
        return name.strip(), float(value)
    except ValueError:
        raise CallerError(f"--limit takes NAME=NUMBER, not {text!r}") from None
