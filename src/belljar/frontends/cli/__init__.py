"""The command line. Each command is a module with `define` (adds its options) and `execute` (returns an exit code).

Only the requested command's module is imported, to keep the startup time of `belljar run` low.
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
INTERNAL_ERROR = 125
BROKEN_PIPE = 128 + signal.SIGPIPE
INTERRUPTED = 128 + signal.SIGINT

_Formatter = argparse.RawDescriptionHelpFormatter

#: Command name to (module, summary for the overview).
COMMANDS = {
    "run": ("run", "run a program in a sandbox"),
    "safe-execute": ("safe_execute", "run restricted Python: allowed imports only, no files, small limits"),
    "shell": ("shell", "open an interactive prompt in a sandbox, here or on a server"),
    "serve": ("serve", "serve the HTTP API"),
    "proxy": ("proxy", "serve web search, web pages and PDFs to code servers"),
    "mcp": ("mcp", "serve MCP on standard input and output"),
    "key": ("keys", "create, list and revoke API keys"),
    "doctor": ("doctor", "test every isolation layer on this machine and suggest fixes"),
    "languages": ("languages", "list, test and install languages other than Python"),
    "env": ("environments", "list, create and remove guest environments"),
    "bench": ("benchmark", "measure latency and throughput on this machine"),
    "config": ("config", "show every setting and its source"),
}

_OVERVIEW = """\
commands:
{commands}

examples:
  belljar run program.py -- ARGUMENT …
  belljar run -c 'print(input())' < data.txt
  belljar doctor
  belljar env create science --package scikit-learn --warm-import sklearn

Run `belljar COMMAND --help` for the options of a command.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. `arguments` defaults to `sys.argv[1:]`."""
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
    except Exception as error:  # last resort: the user gets an exit code and one line
        if "--debug" in own_words:
            raise
        return _explain(error)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a late Ctrl-C would only print a traceback


def safe_execute() -> int:
    """Entry point of the console script `safe_execute`."""
    return main(["safe-execute", *sys.argv[1:]])


def _dispatch(own_words: list[str], program_words: list[str]) -> int:
    overview = _Parser(prog="belljar", formatter_class=_Formatter, add_help=False)
    overview.description = "Run untrusted code in milliseconds, isolated by the Linux kernel."
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
        overview.error(f"unknown command {options.command!r}; choose from: {', '.join(COMMANDS)}")
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
    """Hints at `--` when `belljar run` gets arguments that look meant for the program."""

    def error(self, message: str) -> NoReturn:
        if message.startswith("unrecognized arguments") and self.prog == "belljar run":
            message += "; the program's own arguments come after '--'"
        super().error(message)


def _explain(error: Exception) -> int:
    """Print one line about the error and return the exit code."""
    if isinstance(error, OSError):
        terminal.note(str(error))
        return INTERNAL_ERROR
    if not isinstance(error, BelljarError):
        terminal.note(f"internal error: {type(error).__name__}: {error} (use --debug for a traceback)")
        return INTERNAL_ERROR
    terminal.note(error.message)
    is_usage = isinstance(error, CallerError) and not isinstance(error, InvalidSettings)
    return USAGE if is_usage else INTERNAL_ERROR


def _occupy_standard_descriptors() -> None:
    """Open /dev/null in place of closed standard streams, so that no other file gets their descriptors."""
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one
            setattr(sys, name, os.fdopen(descriptor, "w" if descriptor else "r", closefd=False))


def _end_cleanly_on_signals() -> None:
    """Exit through every `finally`, as Ctrl-C does. Signals ignored by our parent (nohup) stay ignored."""

    def end(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, end)


def _forget_output() -> None:
    """Discard buffered output: flushing it into the broken pipe would fail again when the interpreter exits."""
    with contextlib.suppress(OSError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.close(null)
