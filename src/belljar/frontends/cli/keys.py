"""`belljar key`: creates, lists and revokes API keys. A running server picks up changes immediately."""

from __future__ import annotations

import argparse
import dataclasses
import json

from belljar.contract.errors import CallerError
from belljar.frontends.access.keys import Key, KeyFile, keys_path
from belljar.frontends.cli import terminal
from belljar.frontends.cli.options import define_json, load_settings


def define(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="create|list|revoke")
    create = actions.add_parser("create", help="create a key and print it; it cannot be shown again")
    create.add_argument("name", help="name of the key's holder in logs and limits")
    create.add_argument("--max-concurrent", metavar="N", type=int, help="concurrent programs")
    create.add_argument("--requests-per-minute", metavar="N", type=int)
    create.add_argument("--max-sessions", metavar="N", type=int, help="concurrently open sessions")
    create.add_argument(
        "--limit",
        metavar="NAME=NUMBER",
        action="append",
        default=[],
        help="maximum limit a request may set, such as wall_seconds=30 or memory_mb=256 (repeatable)",
    )
    create.add_argument("--network", action="store_true", help="allow network access, if the server offers it")
    create.add_argument("--tools", action="store_true", help="allow all tools that the server offers")
    create.add_argument("--tool", metavar="NAME", action="append", default=[], help="allow this tool (repeatable)")
    define_json(create)
    define_json(actions.add_parser("list", help="list names and limits; keys are never shown"))
    revoke = actions.add_parser("revoke", help="revoke a key immediately")
    revoke.add_argument("name")
    define_json(revoke)


def execute(options: argparse.Namespace) -> int:
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
        terminal.note(f"save the key of {options.name!r} now; it cannot be shown again")
    return 0


def _list(file: KeyFile, options: argparse.Namespace) -> int:
    keys = file.read()
    if options.json:
        print(json.dumps([_public(key) for key in keys], indent=2))
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
        terminal.note(f"revoked the key of {options.name!r}")
    return 0


def _public(key: Key) -> dict[str, object]:
    return {name: value for name, value in dataclasses.asdict(key).items() if name != "digest"}


def _read_limit(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    try:
        return name.strip(), float(value)
    except ValueError:
        raise CallerError(f"--limit takes NAME=NUMBER, not {text!r}") from None
