"""`belljar safe-execute`, also installed as `safe_execute`: restricted Python, its answer on standard output.

The exit status is 0 whatever the program does: its callers read the text. Only trouble of our own, or a command line
that makes no sense, is told by the exit status and on standard error.
"""

from __future__ import annotations

import argparse
import asyncio
import sys

from belljar.assembly import build_engine, prepare_environment
from belljar.contract.errors import CallerError, InvalidSettings
from belljar.contract.execution import Execution, Outcome
from belljar.contract.restriction import PRINT_CHARACTERS_MAX
from belljar.frontends.cli import terminal
from belljar.frontends.cli.options import define_walls, load_settings
from belljar.frontends.cli.run import for_one_environment
from belljar.frontends.safe_execute import CPU_SECONDS, MEMORY_MB, admit_restricted, answer, refuse
from belljar.settings import Settings

_EPILOG = """\
The program's printed text appears on standard output; with pictures, one JSON object. Anything that goes wrong is a
block that begins with RESOURCE LIMIT EXCEEDED and ends with `Error: …`. The exit status is 0 either way.

examples:
  belljar safe-execute --code 'import statistics; print(statistics.mean([1, 2, 3]))'
  belljar safe-execute --code "$(cat program.py)" --authorized-imports math numpy --max-memory-mb 200
"""


def define(parser: argparse.ArgumentParser) -> None:
    """Options of `belljar safe-execute`; names and units are those of the service it replaces."""
    parser.epilog = _EPILOG
    parser.add_argument("--code", metavar="CODE", required=True, help="the program")
    parser.add_argument(
        "--authorized-imports",
        metavar="MODULE",
        nargs="+",
        action="extend",
        help="modules that it may import, instead of the default list",
    )
    parser.add_argument(
        "--max-print-length",
        metavar="N",
        type=int,
        help=f"characters it may print; the rest is cut (default {PRINT_CHARACTERS_MAX:,})",
    )
    parser.add_argument(
        "--max-memory-mb",
        metavar="MB",
        type=float,
        default=MEMORY_MB,
        help=f"memory that the program itself may add; negative: as much as there is (default {MEMORY_MB})",
    )
    parser.add_argument(
        "--max-cpu-time-sec",
        metavar="S",
        type=float,
        default=CPU_SECONDS,
        help=f"CPU time; negative: as much as there is (default {CPU_SECONDS})",
    )
    define_walls(parser.add_argument_group("walls"))


def execute(options: argparse.Namespace) -> int:
    """Run the program and print its answer."""
    settings = load_settings(options)
    try:
        execution = admit_restricted(
            settings,
            options.code,
            imports=_split(options.authorized_imports),
            print_characters=options.max_print_length,
            memory_mb=options.max_memory_mb,
            cpu_seconds=options.max_cpu_time_sec,
        )
    except InvalidSettings:
        raise
    except CallerError as error:
        text = refuse("ValueError", error.message)
    else:
        with terminal.progress() as tell:
            prepare_environment(settings, execution.environment, tell)
        outcome = asyncio.run(_run(for_one_environment(settings, execution.environment), execution))
        text = answer(execution, outcome)
    sys.stdout.write(text if text.endswith("\n") else text + "\n")
    return 0


def _split(given: list[str] | None) -> list[str] | None:
    """Words, or several in one word with commas."""
    return None if given is None else [name for word in given for name in word.split(",") if name]


async def _run(settings: Settings, execution: Execution) -> Outcome:
    engine = build_engine(settings)
    try:
        await engine.open()
        return await engine.run(execution)
    finally:
        await engine.close(grace_seconds=0.0)
