"""Coverage as a program's own interpreter reports it: asked for, taken back, and checked to the last number.

The report is written beside the program, so a hostile one can write it too. It may lie about what ran, and about
nothing else: every file is one that the host sent, every line is in it, and the percentages are computed here.

It comes in a file in memory whose size is sealed: the guest cannot make it larger, nor smaller under our reading.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
from collections.abc import Mapping
from typing import Any

from belljar.backends.local.extras import Companion, Extra
from belljar.contract.errors import NotOffered
from belljar.contract.execution import Coverage, CoverageReport, Evidence, Execution, FileCoverage
from belljar.environments import Environment
from belljar.jail import policy

_REPORT_BYTES_MAX = 8 * 1024 * 1024
_LENGTH_BYTES = 8
_PLACE = f"{policy.ENVIRONMENT_DIR}/share/instruments"
_SEALS = fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL


class Measurement(Companion):
    """The host's end of one measurement. Owns a descriptor: close it."""

    def __init__(self, execution: Execution, asked: Coverage, environment: Environment) -> None:
        """Raises NotOffered: the environment has nothing to measure with."""
        if not environment.measures_coverage:
            raise _not_offered(environment)
        self._asked = asked
        self._line_counts = _count_lines(execution)
        self._file = os.memfd_create("coverage", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self._file, _REPORT_BYTES_MAX)
        fcntl.fcntl(self._file, fcntl.F_ADD_SEALS, _SEALS)
        argument = {"paths": list(self._line_counts), "branch": asked.branch, "place": _PLACE}
        self.extra = Extra("measure", argument, (self._file,))

    def complete(self, evidence: Evidence) -> Evidence:
        """The evidence with the report in it. Everyone in the jail is dead by now; who was killed has none."""
        return dataclasses.replace(evidence, coverage=None if evidence.exit_code is None else self._read())

    def _read(self) -> CoverageReport | None:
        size = int.from_bytes(os.pread(self._file, _LENGTH_BYTES, 0), "little")
        if not 0 < size <= _REPORT_BYTES_MAX - _LENGTH_BYTES:
            return None
        return read_report(os.pread(self._file, size, _LENGTH_BYTES), self._line_counts, self._asked)

    def close(self) -> None:
        """Let go of the report's memory."""
        os.close(self._file)


def read_report(content: bytes, line_counts: Mapping[str, int], asked: Coverage) -> CoverageReport | None:
    """What a guest says it ran; None if it is anything but a report about these files."""
    try:
        told = json.loads(content)
        if not isinstance(told, list) or not 0 < len(told) <= len(line_counts):
            return None
        read = [_read_file(each, line_counts, asked.branch) for each in told]
        if len({each.path for each, _, _ in read}) != len(read):
            return None
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    covered, counted = sum(hit for _, hit, _ in read), sum(of for _, _, of in read)
    return CoverageReport(percent=_percent(covered, counted), files=tuple(each for each, _, _ in read))


def _read_file(told: Mapping[str, Any], line_counts: Mapping[str, int], branch: bool) -> tuple[FileCoverage, int, int]:
    """One file with how much of it was covered, and of how much."""
    path = told["path"]
    most = line_counts[path]
    executed, missing = _read_lines(told["executed"], most), _read_lines(told["missing"], most)
    if set(executed) & set(missing):
        raise ValueError("a line that ran and did not")
    covered, counted = len(executed), len(executed) + len(missing)
    arcs: tuple[tuple[int, int], ...] | None = None
    if branch:
        branches = _read_number(told["branches"], 0, 2 * _REPORT_BYTES_MAX)
        arcs = tuple(_read_arc(each, most) for each in told["missing_branches"])
        covered += branches - _read_number(len(arcs), 0, branches)
        counted += branches
    percent = _percent(covered, counted)
    file = FileCoverage(path=path, percent=percent, executed=executed, missing=missing, missing_branches=arcs)
    return file, covered, counted


def _read_lines(told: Any, most: int) -> tuple[int, ...]:
    if not isinstance(told, list):
        raise TypeError("not a list of lines")
    before = 0
    for line in told:
        before = _read_number(line, before + 1, most)
    return tuple(told)


def _read_arc(told: Any, most: int) -> tuple[int, int]:
    """From a line to a line; a negative one is coverage.py's word for the end of what starts there."""
    start, end = told
    return _read_number(start, -most, most), _read_number(end, -most, most)


def _read_number(told: Any, least: int, most: int) -> int:
    if type(told) is not int or not least <= told <= most:
        raise ValueError("not a number that can be meant")
    return told


def _percent(covered: int, counted: int) -> float:
    """As coverage.py has it: nothing to cover is all covered, and only all is 100, only nothing is 0."""
    if not counted:
        return 100.0
    percent = round(100 * covered / counted, 2)
    return min(max(percent, 0.01 if covered else 0.0), 100.0 if covered == counted else 99.99)


def _count_lines(execution: Execution) -> dict[str, int]:
    """The Python files of a program, each with a bound on its line numbers."""
    files = {policy.PROGRAM_NAME: execution.code.encode()}
    files.update({file.path: file.content for file in execution.files if file.path.endswith(".py")})
    return {path: _bound_lines(content) for path, content in files.items()}


def _bound_lines(content: bytes) -> int:
    return content.count(b"\n") + content.count(b"\r") + content.count(b"\f") + 2


def _not_offered(environment: Environment) -> NotOffered:
    name = environment.name
    if not environment.packages:
        remedy = f"it has no packages at all: belljar env create {name} --package NAME --replace"
    else:
        remedy = f"it was built without coverage.py: belljar env create {name} --replace"
    return NotOffered(
        f"coverage cannot be measured in environment {name!r}; {remedy} (the operator can)", field="coverage"
    )
