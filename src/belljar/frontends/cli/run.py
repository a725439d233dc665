"""`belljar run`: runs one program in a sandbox and passes on its input, output and exit code."""

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
from belljar.frontends.cli.options import define_given, define_walls, load_settings
from belljar.frontends.cli.terminal_writer import STDERR, STDOUT, TerminalWriter
from belljar.settings import EnvironmentSettings, Settings

TIMED_OUT = 124
_KILLED = 128 + signal.SIGKILL
_ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_EPILOG = """\
Output appears as the program writes it, byte for byte. Standard input is passed on unless it is a terminal or holds
the code. It is read to its end before the program starts; use `< /dev/null` if it is a pipe that is never closed.

exit code:
  the program's exit code; 128 + N if signal N killed it
  124  wall-clock or CPU time limit exceeded         130  Ctrl-C (143 for SIGTERM, 129 for SIGHUP)
  137  memory or output limit exceeded               141  the reader of the output closed the pipe
  125  Belljar failed, or a setting is invalid       2    invalid command line or request

examples:
  belljar run program.py -- ARGUMENT …
  belljar run -c 'print(input())' < data.txt
  generate | belljar run -
  belljar run --file data.csv --artifact '*.png' --displays pictures plot.py
  belljar run --file notes/a.txt:in/a.txt --env LEVEL=3 --timeout 2 --memory 64 program.py
  belljar run --json -c '1/0'
  belljar run main.cpp
  belljar run --language ruby -c 'puts 1 + 1'
"""


def define(parser: argparse.ArgumentParser) -> None:
    parser.usage = "belljar run [options] (FILE | -c CODE | -) [-- ARGUMENT …]"
    parser.epilog = _EPILOG
    parser.add_argument(
        "source", metavar="FILE", nargs="?", help="file with the program; - reads it from standard input"
    )
    parser.add_argument("-c", dest="code", metavar="CODE", help="the program as text")
    _define_given(parser.add_argument_group("input"))
    _define_returned(parser.add_argument_group("output"))
    _define_limits(parser.add_argument_group("limits"))
    define_walls(parser.add_argument_group("isolation"))


def _define_given(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--language", metavar="NAME", help="see belljar languages (default: by the file's extension, else python)"
    )
    define_given(group)


def _define_returned(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--artifact", metavar="GLOB", action="append", default=[], help="files to save, such as '*.png' or 'out/**'"
    )
    group.add_argument(
        "--output-dir", metavar="DIR", help="save artifacts in this directory (default: current directory)"
    )
    group.add_argument("--displays", metavar="DIR", help="save pictures that the program displays in this directory")
    for flag, kind, what in (("--coverage", "lines", "lines"), ("--branch-coverage", "branches", "lines and branches")):
        group.add_argument(
            flag,
            dest="coverage",
            action="store_const",
            const=kind,
            help=f"print a table of {what} that did not run, on standard error",
        )
    group.add_argument("--force", action="store_true", help="overwrite existing files")
    group.add_argument("--json", action="store_true", help="print the whole result as JSON, artifacts included")
    group.add_argument(
        "--stream", action="store_true", help="with --json: print events as they happen, one JSON object per line"
    )


def _define_limits(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--timeout", metavar="SECONDS", type=float, help="wall-clock time")
    group.add_argument("--cpu", metavar="SECONDS", type=float, help="CPU time of all processes together")
    group.add_argument("--memory", metavar="MB", type=float, help="memory of all processes together")
    group.add_argument("--disk", metavar="MB", type=float, help="size of each of the work directory, /tmp and /dev/shm")
    group.add_argument("--processes", metavar="N", type=int, help="number of concurrent processes and threads")
    group.add_argument(
        "--output-limit", metavar="KB", type=float, help="output kept of each stream; the rest is dropped"
    )


def execute(options: argparse.Namespace) -> int:
    settings = load_settings(options)
    execution = _read_execution(settings, options)
    output_dir = Path(options.output_dir or ".")
    if not options.force and (options.output_dir or not options.json):
        save_artifacts.refuse_existing(output_dir, execution.artifacts)
    # Here and not when the engine opens, so that Ctrl-C interrupts a build, which may take minutes.
    with terminal.progress() as report:
        prepare_environment(settings, execution.environment, report)
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING_SIGNALS)  # until the event loop handles them
    return asyncio.run(_OneRun(for_one_environment(settings, execution.environment), execution, options).run())


def for_one_environment(settings: Settings, environment: str) -> Settings:
    """Settings for a single run: open only this environment and keep no guests ready."""
    built_from = settings.environments.get(environment, EnvironmentSettings())
    pool = dataclasses.replace(settings.pool, max_running=1, ready_guests=0)
    return dataclasses.replace(settings, pool=pool, environments={environment: built_from})


# ---- the request


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
    """The language of the file's extension; Python if unknown."""
    ending = Path(source or "").suffix[1:]
    if ending in ("", "py"):
        return "python"
    from belljar.languages.toolchain import find_by_extension

    return find_by_extension(ending) or "python"


def _read_all(source: int | str, shown: str, bytes_max: int) -> bytes:
    """Read at most `bytes_max + 1` bytes: enough for admission to refuse an input that is too long."""
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
    """Parse the value of --env. Raises CallerError unless it is NAME=VALUE."""
    name, equals, value = given.partition("=")
    if not equals:
        raise CallerError(f"--env {given}: expected NAME=VALUE")
    return name, value


def read_files(given: list[str], bytes_max: int) -> list[File]:
    """Read the files named by --file. Raises CallerError if one cannot be read."""
    files = []
    for each in given:
        local, colon, path = each.rpartition(":")
        if not colon or Path(each).exists():
            local, path = each, Path(each).name
        content = _read_all(local, local, bytes_max)
        bytes_max = max(0, bytes_max - len(content))
        files.append(File(path=path, content=content))
    return files


# ---- the run


class _OneRun:
    """The main task of the event loop: opens the engine, runs the program, saves files and prints notes."""

    def __init__(self, settings: Settings, execution: Execution, options: argparse.Namespace) -> None:
        self._settings = settings
        self._execution = execution
        self._options = options
        self._ended_by: int | OSError | None = None  # why we ended the run: an exit code, or a write error

    async def run(self) -> int:
        """Return the exit code. A signal or a closed output pipe kills the program first and cleans up."""
        loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        handled = [each for each in _ENDING_SIGNALS if signal.getsignal(each) is not signal.SIG_IGN]
        for number in handled:
            loop.add_signal_handler(number, self._end, 128 + number)
        writer = TerminalWriter(self._on_write_failure)  # while signals are blocked, so that its thread never gets one
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING_SIGNALS)
        try:
            return await self._run_and_conclude(writer)
        finally:
            # A closing event loop logs an error for every further signal. A signal blocked here would be delivered to
            # another thread, so end those first.
            self._task = None
            await loop.shutdown_default_executor()
            signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING_SIGNALS)
            for number in handled:
                loop.remove_signal_handler(number)
                signal.signal(number, signal.SIG_IGN)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING_SIGNALS)

    async def _run_and_conclude(self, writer: TerminalWriter) -> int:
        try:
            try:
                outcome = await self._run(writer)
            except BelljarError:
                await writer.empty()  # show what the program wrote before the failure
                raise
            await writer.empty()
        except asyncio.CancelledError:
            return self._why_ended()
        return self._conclude(outcome, writer.stderr_line_is_open)

    def _end(self, reason: int | OSError) -> None:
        """End the run. Only the first reason counts; later ones must not interrupt the cleanup."""
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

    async def _run(self, writer: TerminalWriter) -> Outcome:
        engine = build_engine(self._settings, first_language=self._execution.language)
        try:
            await engine.open()
            if not self._options.json:
                return await engine.run(self._execution, watcher=writer)
            if self._options.stream:
                return await _print_events(engine, self._execution, writer)
            outcome = await engine.run(self._execution)
            writer.put(STDOUT, _as_line(outcome.as_json()))
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
                notes.append("no file matches --artifact")
            if outcome.displays and options.displays is None:
                notes.append(f"{_count(len(outcome.displays), 'picture')} not saved; use --displays DIR")
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
    """Print the compiler's output on standard error; standard output is the program's."""
    for text in (compilation.stdout, compilation.stderr):
        if text:
            with contextlib.suppress(OSError):
                os.write(STDERR, text.encode("utf-8", "replace"))


async def _print_events(engine: Engine, execution: Execution, writer: TerminalWriter) -> Outcome:
    """Print the native API's events, one JSON object per line."""
    async for event in engine.stream(execution):
        writer.put(STDOUT, _as_line(describe(event)))
        await writer.caught_up()
        if isinstance(event, Finished):
            return event.outcome
    raise SandboxFault("the program's events ended without an outcome")


def _as_line(tree: dict[str, Any]) -> bytes:
    return json.dumps(tree, ensure_ascii=False).encode() + b"\n"


def exit_code(outcome: Outcome) -> int:
    """The exit code that a shell gets for an outcome."""
    if outcome.status is Status.COMPILE_FAILED and outcome.exit_code is None:
        return (outcome.compilation.exit_code if outcome.compilation else None) or 1
    if outcome.status is Status.TIMED_OUT:
        return TIMED_OUT
    if outcome.status in (Status.OUT_OF_MEMORY, Status.OUTPUT_LIMIT):
        return _KILLED
    if outcome.signal is not None:
        name, _, offset = outcome.signal.partition("+")  # such as SIGRTMIN+3
        return 128 + signal.Signals[name] + int(offset or 0)
    return outcome.exit_code if outcome.exit_code is not None else _KILLED


def _made_by_program(outcome: Outcome, execution: Execution) -> list[File]:
    """The artifacts without the program and its unchanged input files, which `**` matches too."""
    given = {file.path: file.content for file in execution.files}
    code = execution.code.encode()
    return [file for file in outcome.artifacts if file.content not in (code, given.get(file.path))]


def _notes(outcome: Outcome, limits: Limits) -> Iterator[str]:
    """Explanations that the exit code alone does not give."""
    if outcome.status is Status.COMPILE_FAILED and outcome.compilation is not None:
        status = outcome.compilation.status
        yield "not run: compilation failed" + (f" ({status})" if status is not Status.FAILED else "")
    elif outcome.status is Status.TIMED_OUT and outcome.usage.wall_seconds < limits.wall_seconds:
        yield f"timed out after {limits.cpu_seconds:g} s of CPU time; raise the limit with --cpu"
    elif outcome.status is Status.TIMED_OUT:
        yield f"timed out after {limits.wall_seconds:g} s; raise the limit with --timeout"
    elif outcome.status is Status.OUT_OF_MEMORY:
        yield f"killed: out of memory ({limits.memory_bytes / MIB:g} MB); raise the limit with --memory"
    elif outcome.status is Status.OUTPUT_LIMIT:
        yield "killed: too much output"
    elif outcome.status is Status.DENIED:
        yield "killed: system call of a foreign architecture"
    elif outcome.signal is not None:
        yield f"killed by {outcome.signal}"
    for stream, was_cut in (("output", outcome.stdout_cut), ("error output", outcome.stderr_cut)):
        if was_cut:
            yield f"{stream} truncated after {limits.output_bytes / 1024:g} KB; raise the limit with --output-limit"


def _show_coverage(report: CoverageReport | None) -> None:
    if report is None:
        terminal.note("no coverage: the program was killed, skipped its exit handlers, or could not be parsed")
        return
    rows = [(each.path, f"{each.percent:g} %", _show_lines(each)) for each in report.files]
    if len(rows) > 1:
        rows.append(("all", f"{report.percent:g} %", ""))
    terminal.draw_table(terminal.console(on_stderr=True), "Coverage", ["file", "covered", "did not run"], rows)


def _show_lines(file: FileCoverage) -> str:
    """Ranges of missing lines, then the branches never taken from lines that ran."""
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
