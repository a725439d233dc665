"""`belljar safe-execute`, also installed as `safe_execute`: runs restricted Python and prints the result.

The exit code is 0 whatever the program does, because callers parse the text. Only internal errors and an invalid
command line are reported by the exit code and on standard error.
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
Prints the program's output, or one JSON object if there are pictures. Errors are printed as a block that begins with
RESOURCE LIMIT EXCEEDED and ends with `Error: …`. The exit code is 0 in either case.

examples:
  belljar safe-execute --code 'import statistics; print(statistics.mean([1, 2, 3]))'
  belljar safe-execute --code "$(cat program.py)" --authorized-imports math numpy --max-memory-mb 200
"""


def define(parser: argparse.ArgumentParser) -> None:
    # Names and units are those of the service that this command replaces.
    parser.epilog = _EPILOG
    parser.add_argument("--code", metavar="CODE", required=True, help="the program")
    parser.add_argument(
        "--authorized-imports",
        metavar="MODULE",
        nargs="+",
        action="extend",
        help="modules that the program may import, instead of the default list",
    )
    parser.add_argument(
        "--max-print-length",
        metavar="N",
        type=int,
        help=f"characters kept of the output; the rest is cut (default {PRINT_CHARACTERS_MAX:,})",
    )
    parser.add_argument(
        "--max-memory-mb",
        metavar="MB",
        type=float,
        default=MEMORY_MB,
        help=f"memory that the program may allocate; negative for the configured maximum (default {MEMORY_MB})",
    )
    parser.add_argument(
        "--max-cpu-time-sec",
        metavar="S",
        type=float,
        default=CPU_SECONDS,
        help=f"CPU time; negative for the configured maximum (default {CPU_SECONDS})",
    )
    define_walls(parser.add_argument_group("isolation"))


def execute(options: argparse.Namespace) -> int:
    settings = load_settings(options)
    given = options.authorized_imports  # words, each one name or several with commas
    try:
        execution = admit_restricted(
            settings,
            options.code,
            imports=given and [name for word in given for name in word.split(",") if name],
            print_characters=options.max_print_length,
            memory_mb=options.max_memory_mb,
            cpu_seconds=options.max_cpu_time_sec,
        )
    except InvalidSettings:
        raise
    except CallerError as error:
        text = refuse("ValueError", error.message)
    else:
        with terminal.progress() as report:
            prepare_environment(settings, execution.environment, report)
        outcome = asyncio.run(_run(for_one_environment(settings, execution.environment), execution))
        text = answer(execution, outcome)
    sys.stdout.write(text if text.endswith("\n") else text + "\n")
    return 0


async def _run(settings: Settings, execution: Execution) -> Outcome:
    engine = build_engine(settings)
    try:
        await engine.open()
        return await engine.run(execution)
    finally:
        await engine.close(grace_seconds=0.0)
