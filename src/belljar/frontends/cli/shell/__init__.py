"""`belljar shell`: type cells into a sandbox that remembers, here or on a server."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

from belljar.assembly import prepare_environment
from belljar.contract.errors import CallerError
from belljar.contract.request import SessionRequest
from belljar.engine.admission.request import admit_session
from belljar.frontends.cli import terminal
from belljar.frontends.cli.options import define_network, define_walls, load_settings
from belljar.frontends.cli.run import for_one_environment, read_files, split_variable
from belljar.frontends.cli.shell.keyboard import editing
from belljar.frontends.cli.shell.prompt import HELP, Prompt
from belljar.frontends.cli.shell.screen import Screen
from belljar.frontends.cli.shell.session_hosts import Here, Loop, SessionHost, There
from belljar.settings import Settings

_EPILOG = f"""\
At the prompt, besides code:

{HELP}

Without a terminal, lines are read from standard input and put together into cells as they would be at the prompt;
values are printed plain, and the exit code is 1 if anything failed.

examples:
  belljar shell
  belljar shell --file data.csv --memory 1024
  belljar shell --branch                                 every cell can be undone with :back
  belljar shell --url http://127.0.0.1:8000
  belljar shell --url URL --session ID --branch          look into a session without changing it
  printf 'x = 6\\nx * 7\\n' | belljar shell
"""


def define(parser: argparse.ArgumentParser) -> None:
    """Options of `belljar shell`."""
    parser.epilog = _EPILOG
    parser.add_argument("--language", metavar="NAME", default="python", help="python (default), javascript or bash")
    parser.add_argument(
        "--branch",
        action="store_true",
        help="run each cell in a branch of the state before it, which is kept for :back",
    )
    _define_server(parser.add_argument_group("on a server instead of here"))
    given = parser.add_argument_group("what it is given")
    given.add_argument("--env", metavar="NAME=VALUE", action="append", default=[], help="an environment variable")
    given.add_argument(
        "--file",
        metavar="LOCAL[:PATH]",
        action="append",
        default=[],
        help="a file for its work directory, under its own name or at PATH",
    )
    given.add_argument("--environment", metavar="NAME", default="default", help="guest environment (see belljar env)")
    define_network(given)
    used = parser.add_argument_group("what it may use")
    used.add_argument("--timeout", metavar="SECONDS", type=float, help="wall-clock time of each cell")
    used.add_argument("--memory", metavar="MB", type=float, help="memory of the session, all its processes together")
    used.add_argument("--disk", metavar="MB", type=float, help="work directory, /tmp and /dev/shm, each")
    here = parser.add_argument_group("this terminal")
    here.add_argument("--displays", metavar="DIR", default=".", help="where pictures are saved (default: here)")
    here.add_argument("--history", metavar="FILE", help="where lines are remembered; an empty name: nowhere")
    define_walls(parser.add_argument_group("walls"))


def _define_server(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--url", metavar="URL", help="such as http://127.0.0.1:8000")
    group.add_argument(
        "--api-key", metavar="KEY", help="others see it in the list of processes, so prefer BELLJAR_API_KEY"
    )
    group.add_argument("--session", metavar="ID", help="join this session instead of opening one; it is left open")


def execute(options: argparse.Namespace) -> int:
    """Converse until the end of input."""
    settings = load_settings(options)
    if options.session is not None and options.url is None:
        raise CallerError("--session joins a session on a server; name the server with --url")
    place = _find_place(settings, options)
    screen = Screen(Path(options.displays))
    with Loop() as loop:
        try:
            prompt = Prompt(loop, place, screen, keeps_states=options.branch)
            try:
                prompt.start(options.session)
                if not screen.is_terminal:
                    return prompt.converse()
                with editing(_history_path(settings, options), [f":{each}" for each in (*prompt.commands, "quit")]):
                    return prompt.converse()
            finally:
                prompt.leave()
        finally:
            loop.do(place.close())


def _find_place(settings: Settings, options: argparse.Namespace) -> SessionHost:
    limits = {"wall_seconds": options.timeout, "memory_mb": options.memory, "disk_mb": options.disk}
    named = {name: value for name, value in limits.items() if value is not None}
    env = dict(split_variable(each) for each in options.env)
    files = read_files(options.file, settings.request.files_bytes)
    if options.url is not None:
        return There(
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
    # Nobody else is here whom an idle session could be in the way of.
    order = dataclasses.replace(order, idle_seconds=_WEEK_SECONDS)
    with terminal.progress() as tell:
        prepare_environment(settings, order.environment, tell)
    return Here(for_one_environment(settings, order.environment), order)


def _history_path(settings: Settings, options: argparse.Namespace) -> Path | None:
    if options.history is None:
        return settings.state_dir / "shell_history"
    return Path(options.history).expanduser() if options.history else None


_WEEK_SECONDS = 7 * 86400.0
