"""`belljar run`: one program, its output and exit code as if it had been run without us."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import errno
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from belljar.assembly import build_engine, prepare_environment
from belljar.contract.errors import BelljarError, CallerError, SandboxFault
from belljar.contract.execution import (
    MIB,
    Compilation,
    Coverage,
    CoverageReport,
    Execution,
    FileCoverage,
    Finished,
    Limits,
    Outcome,
    Status,
    describe,
)
from belljar.contract.files import File
from belljar.contract.request import ExecutionRequest
from belljar.engine.admission.request import admit
from belljar.engine.engine import Engine
from belljar.frontends.cli import BROKEN_PIPE, save_artifacts, terminal
from belljar.frontends.cli.options import define_network, define_walls, load_settings
from belljar.frontends.cli.terminal_writer import STDERR, STDOUT, Outlet
from belljar.settings import EnvironmentSettings, Settings

TIMED_OUT = 124
_KILLED = 128 + signal.SIGKILL
_ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_EPILOG = """\
Output appears as the program writes it, byte for byte. Standard input is passed on unless it is a terminal or holds
the code; it is read to its end first, so give `< /dev/null` to a program that needs none where nobody closes it.

exit code:
  that of the program; 128 + N if signal N ended it
  124  it ran out of wall-clock or CPU time          130  Ctrl-C (also 143, 129 for SIGTERM, SIGHUP)
  137  it ran out of memory, or flooded its output   141  nobody read its output any more
  125  we failed, or the settings make no sense      2    the command line or the request makes no sense

examples:
  belljar run program.py -- its arguments
  belljar run -c 'print(input())' < data.txt
  generate | belljar run -
  belljar run --file data.csv --artifact '*.png' --displays pictures plot.py
  belljar run --file notes/a.txt:in/a.txt --env LEVEL=3 --timeout 2 --memory 64 program.py
  belljar run --json -c '1/0'
  belljar run main.cpp
  belljar run --language ruby -c 'puts 1 + 1'
"""


def define(parser: argparse.ArgumentParser) -> None:
    """Options of `belljar run`."""
    parser.usage = "belljar run [options] (FILE | -c CODE | -) [-- ARGUMENT …]"
    parser.epilog = _EPILOG
    parser.add_argument("source", metavar="FILE", nargs="?", help="the program; - reads it from standard input")
    parser.add_argument("-c", dest="code", metavar="CODE", help="the program itself")
    _define_given(parser.add_argument_group("what it is given"))
    _define_returned(parser.add_argument_group("what comes back"))
    _define_limits(parser.add_argument_group("what it may use"))
    define_walls(parser.add_argument_group("walls"))


def _define_given(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--language", metavar="NAME", help="see belljar languages (default: by the file's ending, else python)"
    )
    group.add_argument("--env", metavar="NAME=VALUE", action="append", default=[], help="an environment variable")
    group.add_argument(
        "--file",
        metavar="LOCAL[:PATH]",
        action="append",
        default=[],
        help="a file for its work directory, under its own name or at PATH",
    )
    group.add_argument("--environment", metavar="NAME", default="default", help="guest environment (see belljar env)")
    define_network(group)


def _define_returned(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--artifact", metavar="GLOB", action="append", default=[], help="files to keep, such as '*.png' or 'out/**'"
    )
    group.add_argument("--output-dir", metavar="DIR", help="where artifacts are saved (default: here)")
    group.add_argument("--displays", metavar="DIR", help="save pictures the program shows in this directory")
    for flag, kind, what in (("--coverage", "lines", "lines"), ("--branch-coverage", "branches", "lines and branches")):
        group.add_argument(
            flag, dest="coverage", action="store_const", const=kind, help=f"a table of {what} that did not run (stderr)"
        )
    group.add_argument("--force", action="store_true", help="overwrite files that exist")
    group.add_argument("--json", action="store_true", help="print the whole result as JSON, artifacts included")
    group.add_argument(
        "--stream", action="store_true", help="with --json: one JSON object a line, as things happen (else: always so)"
    )


def _define_limits(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--timeout", metavar="SECONDS", type=float, help="wall-clock time")
    group.add_argument("--cpu", metavar="SECONDS", type=float, help="CPU time, all its processes together")
    group.add_argument("--memory", metavar="MB", type=float, help="memory, all its processes together")
    group.add_argument("--disk", metavar="MB", type=float, help="work directory, /tmp and /dev/shm, each")
    group.add_argument("--processes", metavar="N", type=int, help="processes and threads at the same time")
    group.add_argument("--output-limit", metavar="KB", type=float, help="of each stream; the rest is dropped")


def execute(options: argparse.Namespace) -> int:
    """Run the program that the options describe; return its exit code."""
    settings = load_settings(options)
    execution = _read_execution(settings, options)
    output_dir = Path(options.output_dir or ".")
    if not options.force and (options.output_dir or not options.json):
        save_artifacts.refuse_existing(output_dir, execution.artifacts)
    # Here and not when the engine opens: a Ctrl-C must end a build that takes minutes.
    with terminal.progress() as tell:
        prepare_environment(settings, execution.environment, tell)
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING_SIGNALS)  # until the loop listens: none may tear its making apart
    return asyncio.run(_OneRun(for_one_environment(settings, execution.environment), execution, options).run())


def for_one_environment(settings: Settings, environment: str) -> Settings:
    """One program at a time; nothing is made ahead, since nothing comes after; one environment is opened."""
    built_from = settings.environments.get(environment, EnvironmentSettings())
    pool = dataclasses.replace(settings.pool, max_running=1, ready_guests=0)
    return dataclasses.replace(settings, pool=pool, environments={environment: built_from})


# ---- what is asked


def _read_execution(settings: Settings, options: argparse.Namespace) -> Execution:
    if (options.code is None) == (options.source is None):
        raise CallerError("give one program: a FILE, -c CODE, or - for standard input (belljar run --help)")
    code_bytes_max = settings.request.code_bytes
    if options.code is not None:
        code = options.code
    elif options.source == "-":
        code = _decode("standard input", _read_all(0, "standard input", code_bytes_max))
    else:
        code = _decode(options.source, _read_all(options.source, options.source, code_bytes_max))
    stdin = (
        b"" if options.source == "-" or os.isatty(0) else _read_all(0, "standard input", settings.request.stdin_bytes)
    )
    limits = {
        "wall_seconds": options.timeout,
        "cpu_seconds": options.cpu,
        "memory_mb": options.memory,
        "disk_mb": options.disk,
        "processes": options.processes,
        "output_kb": options.output_limit,
    }
    request = ExecutionRequest(
        code,
        language=options.language or _language_of(options.source),
        stdin=stdin,
        args=options.program_words,
        env=dict(split_variable(each) for each in options.env),
        files=read_files(options.file, settings.request.files_bytes),
        artifacts=options.artifact,
        limits={name: value for name, value in limits.items() if value is not None},
        environment=options.environment,
        network=options.network,
        coverage=options.coverage and Coverage(branch=options.coverage == "branches"),
    )
    return admit(settings, request)


def _language_of(source: str | None) -> str:
    """By the ending of the file's name; what is not known to be anything else is Python."""
    ending = Path(source or "").suffix[1:]
    if ending in ("", "py"):
        return "python"
    from belljar.languages.toolchain import find_by_extension

    return find_by_extension(ending) or "python"


def _read_all(source: int | str, shown: str, bytes_max: int) -> bytes:
    """At most one byte more than is taken: enough for admission to refuse it."""
    try:
        with open(source, "rb", closefd=isinstance(source, str)) as file:
            return file.read(bytes_max + 1)
    except OSError as error:
        raise CallerError(f"cannot read {shown}: {error.strerror}") from error


def _decode(shown: str, code: bytes) -> str:
    try:
        return code.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CallerError(f"{shown} is not UTF-8 (byte {error.start}: {error.reason}); save it as UTF-8") from None


def split_variable(given: str) -> tuple[str, str]:
    """What --env gives. Raises CallerError unless it is NAME=VALUE."""
    name, equals, value = given.partition("=")
    if not equals:
        raise CallerError(f"--env {given}: write NAME=VALUE")
    return name, value


def read_files(given: list[str], bytes_max: int) -> list[File]:
    """What --file gives. Raises CallerError when one cannot be read."""
    files = []
    for each in given:
        local, colon, path = each.rpartition(":")
        if not colon or Path(each).exists():
            local, path = each, Path(each).name
        content = _read_all(local, local, bytes_max)
        bytes_max = max(0, bytes_max - len(content))
        files.append(File(path=path, content=content))
    return files


# ---- what happens


class _OneRun:
    """One run from the opening of the engine to the last note; an event loop's main task."""

    def __init__(self, settings: Settings, execution: Execution, options: argparse.Namespace) -> None:
        self._settings = settings
        self._execution = execution
        self._options = options
        self._ended_by: int | OSError | None = None  # the exit code, or the trouble, that we ended the run for

    async def run(self) -> int:
        """The exit code. A signal or a reader who has gone ends the program first; nothing is left behind."""
        loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        heard = [each for each in _ENDING_SIGNALS if signal.getsignal(each) is not signal.SIG_IGN]
        for number in heard:
            loop.add_signal_handler(number, self._end, 128 + number)
        outlet = Outlet(self._on_write_failure)  # before the signals are unblocked: its thread never gets one
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING_SIGNALS)
        try:
            return await self._run_and_conclude(outlet)
        finally:
            # A loop that is being closed complains about each signal that still comes. One that is blocked here goes to
            # another thread that does not block it, so there must be none.
            self._task = None
            await loop.shutdown_default_executor()
            signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING_SIGNALS)
            for number in heard:
                loop.remove_signal_handler(number)
                signal.signal(number, signal.SIG_IGN)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING_SIGNALS)

    async def _run_and_conclude(self, outlet: Outlet) -> int:
        try:
            try:
                outcome = await self._run(outlet)
            except BelljarError:
                await outlet.empty()  # what the program wrote before something went wrong is still its output
                raise
            await outlet.empty()
        except asyncio.CancelledError:
            return self._why_ended()
        return self._conclude(outcome, outlet.stderr_line_is_open)

    def _end(self, reason: int | OSError) -> None:
        """The first reason counts; what comes while we clean up must not stop that."""
        if self._ended_by is None and self._task is not None:
            self._ended_by = reason
            self._task.cancel()

    def _on_write_failure(self, error: OSError) -> None:
        self._end(BROKEN_PIPE if error.errno == errno.EPIPE else error)

    def _why_ended(self) -> int:
        if isinstance(self._ended_by, int):
            return self._ended_by
        if self._ended_by is None:
            raise asyncio.CancelledError
        raise SandboxFault(f"cannot write the program's output: {self._ended_by.strerror}") from self._ended_by

    async def _run(self, outlet: Outlet) -> Outcome:
        engine = build_engine(self._settings, first_language=self._execution.language)
        try:
            await engine.open()
            if not self._options.json:
                return await engine.run(self._execution, watcher=outlet)
            if self._options.stream:
                return await _print_events(engine, self._execution, outlet)
            outcome = await engine.run(self._execution)
            outlet.put(STDOUT, _as_line(outcome.as_json()))
            return outcome
        finally:
            await engine.close(grace_seconds=0.0)

    def _conclude(self, outcome: Outcome, line_is_open: bool) -> int:
        options = self._options
        artifacts = _made_by_program(outcome, self._execution)
        if not options.json:
            if outcome.compilation is not None:
                _pass_on_compiler(outcome.compilation)
            notes = list(_notes(outcome, self._execution.limits))
            if self._execution.artifacts and not artifacts:
                notes.append("it left no file that --artifact asks for")
            if outcome.displays and options.displays is None:
                notes.append(f"{_count(len(outcome.displays), 'picture')} not saved; save with --displays DIR")
            if notes and line_is_open:
                os.write(STDERR, b"\n")
            for note in notes:
                terminal.note(note)
            if self._execution.coverage is not None:
                _show_coverage(outcome.coverage)
        if artifacts and (options.output_dir is not None or not options.json):
            save_artifacts.save(Path(options.output_dir or "."), artifacts, options.force)
        if outcome.displays and options.displays is not None:
            save_artifacts.save(Path(options.displays), save_artifacts.as_files(outcome.displays), options.force)
        return exit_code(outcome)


def _pass_on_compiler(compilation: Compilation) -> None:
    """What the compiler said, on standard error: standard output is the program's."""
    for text in (compilation.stdout, compilation.stderr):
        if text:
            with contextlib.suppress(OSError):
                os.write(STDERR, text.encode("utf-8", "replace"))


async def _print_events(engine: Engine, execution: Execution, outlet: Outlet) -> Outcome:
    """The stream of the native API, one object a line."""
    async for event in engine.stream(execution):
        outlet.put(STDOUT, _as_line(describe(event)))
        await outlet.caught_up()
        if isinstance(event, Finished):
            return event.outcome
    raise SandboxFault("the program's events ended without an outcome")


def _as_line(tree: dict[str, Any]) -> bytes:
    return json.dumps(tree, ensure_ascii=False).encode() + b"\n"


def exit_code(outcome: Outcome) -> int:
    """What a shell should see of an outcome."""
    if outcome.status is Status.COMPILE_FAILED and outcome.exit_code is None:
        return (outcome.compilation.exit_code if outcome.compilation else None) or 1
    if outcome.status is Status.TIMED_OUT:
        return TIMED_OUT
    if outcome.status in (Status.OUT_OF_MEMORY, Status.OUTPUT_LIMIT):
        return _KILLED
    if outcome.signal is not None:
        return 128 + _signal_number(outcome.signal)
    return outcome.exit_code if outcome.exit_code is not None else _KILLED


def _signal_number(name: str) -> int:
    base, _, offset = name.partition("+")
    return signal.Signals[base] + int(offset or 0)


def _made_by_program(outcome: Outcome, execution: Execution) -> list[File]:
    """Artifacts without what we have put there ourselves: `**` asks for results, not for the program and its input."""
    given = {file.path: file.content for file in execution.files}
    code = execution.code.encode()
    return [file for file in outcome.artifacts if file.content not in (code, given.get(file.path))]


def _notes(outcome: Outcome, limits: Limits) -> Iterator[str]:
    """What the exit code alone does not tell."""
    if outcome.status is Status.COMPILE_FAILED and outcome.compilation is not None:
        how = outcome.compilation.status
        yield "it was not run: compiling failed" + (f" ({how})" if how is not Status.FAILED else "")
    elif outcome.status is Status.TIMED_OUT and outcome.usage.wall_seconds < limits.wall_seconds:
        yield f"ended: it used up its {limits.cpu_seconds:g} s of CPU time; allow more with --cpu"
    elif outcome.status is Status.TIMED_OUT:
        yield f"ended: it was not done after {limits.wall_seconds:g} s; allow more with --timeout"
    elif outcome.status is Status.OUT_OF_MEMORY:
        yield f"killed: it needed more than its {limits.memory_bytes / MIB:g} MB of memory; allow more with --memory"
    elif outcome.status is Status.OUTPUT_LIMIT:
        yield "killed: it flooded its output far past what is kept"
    elif outcome.status is Status.DENIED:
        yield "killed: it made a system call of a foreign architecture"
    elif outcome.signal is not None:
        yield f"killed by {outcome.signal}"
    for stream, was_cut in (("output", outcome.stdout_cut), ("error output", outcome.stderr_cut)):
        if was_cut:
            yield f"its {stream} was cut after {limits.output_bytes / 1024:g} KB; allow more with --output-limit"


def _show_coverage(report: CoverageReport | None) -> None:
    if report is None:
        terminal.note("no coverage: the program was killed, left without its exit functions, or could not be read")
        return
    rows = [(each.path, f"{each.percent:g} %", _show_lines(each)) for each in report.files]
    if len(rows) > 1:
        rows.append(("all", f"{report.percent:g} %", ""))
    terminal.draw_table(terminal.console(on_stderr=True), "Coverage", ["file", "covered", "did not run"], rows)


def _show_lines(file: FileCoverage) -> str:
    """The missing lines, neighbours together, then the branches that were never taken from lines that ran."""
    ranges: list[list[int]] = []
    for line in file.missing:
        if ranges and line == ranges[-1][1] + 1:
            ranges[-1][1] = line
        else:
            ranges.append([line, line])
    shown = [str(first) if first == last else f"{first}-{last}" for first, last in ranges]
    missing = set(file.missing)
    shown += [
        f"{start}→{end if end > 0 else 'exit'}" for start, end in file.missing_branches or () if start not in missing
    ]
    return ", ".join(shown)


def _count(number: int, noun: str) -> str:
    return f"1 {noun} was" if number == 1 else f"{number} {noun}s were"
