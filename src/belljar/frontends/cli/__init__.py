"""The command line. Each command is a module with `define` (its options) and `execute` (returns an exit code).

Only the module of the command that was asked for is imported, and only what it needs: `belljar run` is typed by
people who wait for it.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

from belljar import __version__
from belljar.contract.errors import BelljarError, CallerError, InvalidSettings
from belljar.frontends.cli import terminal
from belljar.frontends.cli.options import define_common

USAGE = 2
OUR_TROUBLE = 125
BROKEN_PIPE = 128 + signal.SIGPIPE
INTERRUPTED = 128 + signal.SIGINT

_Formatter = argparse.RawDescriptionHelpFormatter

#: Each command with its module and its line in the overview.
COMMANDS = {
    "run": ("run", "run a program behind all walls"),
    "safe-execute": ("safe_execute", "run restricted Python: allowed imports only, no files, small limits"),
    "shell": ("shell", "type cells into a sandbox that remembers, here or on a server"),
    "serve": ("serve", "serve the HTTP API"),
    "proxy": ("proxy", "serve search, web pages and PDFs to code servers"),
    "mcp": ("mcp", "serve an assistant over MCP, on standard input and output"),
    "key": ("keys", "create, list and revoke the keys of the HTTP API"),
    "doctor": ("doctor", "try every wall on this machine, and say how to get what is missing"),
    "languages": ("languages", "list, try and install the languages beside Python"),
    "env": ("environments", "list, create and remove guest environments"),
    "bench": ("benchmark", "measure this machine: latency and rate of small programs"),
    "config": ("config", "show the settings and where each came from"),
}

_OVERVIEW = """\
commands:
{commands}

examples:
  belljar run program.py -- its arguments
  belljar run -c 'print(input())' < data.txt
  belljar doctor
  belljar env create science --package scikit-learn --warm-import sklearn

`belljar COMMAND --help` tells the rest.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line asks; return the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    own_words = words[: words.index("--")] if "--" in words else words
    _occupy_standard_descriptors()
    _end_cleanly_on_signals()
    try:
        code = _dispatch(own_words, words[len(own_words) + 1 :])
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        _forget_output()
        return BROKEN_PIPE
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:  # the end of this process: it must still become an exit code
        if "--debug" in own_words:
            raise
        return _explain(error)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is done: a late Ctrl-C would only draw a traceback


def safe_execute() -> int:
    """The console script of that name: `belljar safe-execute` with the same words."""
    return main(["safe-execute", *sys.argv[1:]])


def _dispatch(own_words: list[str], program_words: list[str]) -> int:
    overview = _Parser(prog="belljar", formatter_class=_Formatter, add_help=False)
    overview.description = "Runs code nobody trusts in milliseconds: a warm fork behind every wall Linux has."
    lines = (f"  {name:<12} {summary}" for name, (_, summary) in COMMANDS.items())
    overview.epilog = _OVERVIEW.format(commands="\n".join(lines))
    overview.usage = "belljar [--config FILE] [--debug] COMMAND …"
    define_common(overview)
    overview.add_argument("--version", action="version", version=f"belljar {__version__}")
    overview.add_argument("command", metavar="COMMAND", nargs="?", help=argparse.SUPPRESS)
    overview.add_argument("rest", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    options = overview.parse_args(own_words)
    if options.command is None:
        overview.print_help(sys.stderr)
        return USAGE
    if options.command not in COMMANDS:
        overview.error(f"there is no command {options.command!r}; choose one of: {', '.join(COMMANDS)}")
    module_name, summary = COMMANDS[options.command]
    command = importlib.import_module(f"belljar.frontends.cli.{module_name}")
    parser = _Parser(
        prog=f"belljar {options.command}",
        description=summary[0].upper() + summary[1:] + ".",
        formatter_class=_Formatter,
        add_help=False,
    )
    command.define(parser)
    define_common(parser)
    parser.parse_args(options.rest, namespace=options)
    options.program_words = program_words
    if program_words and options.command != "run":
        parser.error("only 'belljar run' takes arguments after '--'")
    code: int = command.execute(options)
    return code


class _Parser(argparse.ArgumentParser):
    """Says what to do about arguments that look like the program's own."""

    def error(self, message: str) -> NoReturn:
        if message.startswith("unrecognized arguments") and self.prog == "belljar run":
            message += "; the program's own arguments come after '--'"
        super().error(message)


def _explain(error: Exception) -> int:
    """One line for whoever typed the command; what to do is in the message."""
    if isinstance(error, OSError):
        terminal.note(str(error))
        return OUR_TROUBLE
    if not isinstance(error, BelljarError):
        terminal.note(f"this should not have happened: {type(error).__name__}: {error} (--debug shows where)")
        return OUR_TROUBLE
    terminal.note(error.message)
    is_usage = isinstance(error, CallerError) and not isinstance(error, InvalidSettings)
    return USAGE if is_usage else OUR_TROUBLE


def _occupy_standard_descriptors() -> None:
    """If we were started with one of them closed, the next file we open would take its place, and its output."""
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number: this one
            setattr(sys, name, os.fdopen(descriptor, "w" if descriptor else "r", closefd=False))


def _end_cleanly_on_signals() -> None:
    """Leave through every `finally`, as Ctrl-C does. Who started us with nohup wants the signal ignored."""

    def end(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, end)


def _forget_output() -> None:
    """Nobody reads any more: what is still buffered must not fail again when the interpreter ends."""
    with contextlib.suppress(OSError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.close(null)
