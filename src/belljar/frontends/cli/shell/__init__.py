"""`belljar shell`: an interactive prompt in a sandbox, here or on a server."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

from belljar.assembly import prepare_environment
from belljar.contract.errors import CallerError
from belljar.contract.request import SessionRequest
from belljar.engine.admission.request import admit_session
from belljar.frontends.cli import terminal
from belljar.frontends.cli.options import define_given, define_walls, load_settings
from belljar.frontends.cli.run import for_one_environment, read_files, split_variable
from belljar.frontends.cli.shell.keyboard import editing
from belljar.frontends.cli.shell.prompt import HELP, Prompt
from belljar.frontends.cli.shell.screen import Screen
from belljar.frontends.cli.shell.session_hosts import LocalHost, Loop, RemoteHost, SessionHost
from belljar.settings import Settings

_EPILOG = f"""\
At the prompt, besides code:

{HELP}

Without a terminal, lines from standard input are joined into cells as at the prompt; values are printed without
`Out[…]`, and the exit code is 1 if anything failed.

examples:
  belljar shell
  belljar shell --file data.csv --memory 1024
  belljar shell --branch                                 undo cells with :back
  belljar shell --url http://127.0.0.1:8000
  belljar shell --url URL --session ID --branch          inspect a session without changing it
  printf 'x = 6\\nx * 7\\n' | belljar shell
"""


def define(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    parser.add_argument("--language", metavar="NAME", default="python", help="python (default), javascript or bash")
    parser.add_argument(
        "--branch",
        action="store_true",
        help="keep the state before each cell as a branch, for :back",
    )
    server = parser.add_argument_group("server")
    server.add_argument("--url", metavar="URL", help="run on this server, such as http://127.0.0.1:8000")
    server.add_argument("--api-key", metavar="KEY", help="visible in the process list, so prefer BELLJAR_API_KEY")
    server.add_argument("--session", metavar="ID", help="join this session instead of opening one; it is left open")
    given = parser.add_argument_group("input")
    define_given(given)
    used = parser.add_argument_group("limits")
    used.add_argument("--timeout", metavar="SECONDS", type=float, help="wall-clock time of each cell")
    used.add_argument("--memory", metavar="MB", type=float, help="memory of all processes of the session together")
    used.add_argument("--disk", metavar="MB", type=float, help="size of each of the work directory, /tmp and /dev/shm")
    here = parser.add_argument_group("terminal")
    here.add_argument(
        "--displays", metavar="DIR", default=".", help="save pictures in this directory (default: current directory)"
    )
    here.add_argument("--history", metavar="FILE", help="history file; an empty name turns history off")
    define_walls(parser.add_argument_group("isolation"))


def execute(options: argparse.Namespace) -> int:
    """Run cells until the end of input."""
    settings = load_settings(options)
    if options.session is not None and options.url is None:
        raise CallerError("--session requires --url, the server of the session")
    host = _choose_host(settings, options)
    screen = Screen(Path(options.displays))
    with Loop() as loop:
        try:
            prompt = Prompt(loop, host, screen, keeps_states=options.branch)
            try:
                prompt.start(options.session)
                if not screen.is_terminal:
                    return prompt.run()
                with editing(_history_path(settings, options), [f":{each}" for each in (*prompt.commands, "quit")]):
                    return prompt.run()
            finally:
                prompt.leave()
        finally:
            loop.do(host.close())


def _choose_host(settings: Settings, options: argparse.Namespace) -> SessionHost:
    limits = {"wall_seconds": options.timeout, "memory_mb": options.memory, "disk_mb": options.disk}
    named = {name: value for name, value in limits.items() if value is not None}
    env = dict(split_variable(each) for each in options.env)
    files = read_files(options.file, settings.request.files_bytes)
    if options.url is not None:
        return RemoteHost(
            options.url,
            options.api_key,
            {
                "language": options.language,
                "environment": options.environment,
                "limits": named,
                "env": env,
                "network": options.network,
                "files": files,
            },
        )
    session = SessionRequest(
        language=options.language,
        environment=options.environment,
        limits=named,
        env=env,
        network=options.network,
        files=files,
    )
    order = admit_session(settings, session)
    # An idle session blocks no other user here.
    order = dataclasses.replace(order, idle_seconds=_WEEK_SECONDS)
    with terminal.progress() as report:
        prepare_environment(settings, order.environment, report)
    return LocalHost(for_one_environment(settings, order.environment), order)


def _history_path(settings: Settings, options: argparse.Namespace) -> Path | None:
    if options.history is None:
        return settings.state_dir / "shell_history"
    return Path(options.history).expanduser() if options.history else None


_WEEK_SECONDS = 7 * 86400.0
