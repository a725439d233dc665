"""Coverage as a program's own interpreter reports it: asked for, taken back, and checked to the last number.

The report is written beside the program, so a hostile one can write it too. It may lie about what ran, and about
nothing else: every file is one that the host sent, every line is in it, and the percentages are computed here.

It comes in a file in memory whose size is sealed: the guest cannot make it larger, nor smaller under our reading. That
size, and every list in it, is bounded by the lines that the host sent, and nothing may be said twice: whoever forges a
report keeps us no busier than an honest one of such a program.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
from collections.abc import Mapping, Sequence

import msgspec

from belljar.backends.local.features.feature import GuestFeature, HostFeature
from belljar.contract.errors import NotOffered
from belljar.contract.execution import Coverage, CoverageReport, Evidence, Execution, FileCoverage
from belljar.environments import Environment
from belljar.jail import policy

_REPORT_BYTES_MAX = 4 * 1024 * 1024
_LENGTH_BYTES = 8
_FILE_BYTES = 128  # for the names of what is said of each file, and two numbers
_BRANCHES_PER_LINE = 8  # on average; most have none, few more than two
_PLACE = f"{policy.ENVIRONMENT_DIR}/share/instruments"
_SEALS = fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL


class Measurement(HostFeature):
    """The host's end of one measurement. Owns a descriptor: close it."""

    def __init__(self, execution: Execution, asked: Coverage, environment: Environment) -> None:
        """Raises NotOffered: the environment has nothing to measure with."""
        if not environment.measures_coverage:
            raise _not_offered(environment)
        self._asked = asked
        self._line_counts = _count_lines(execution)
        self._file = os.memfd_create("coverage", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self._bytes_max = _bound_report(self._line_counts, asked.branch)
        os.ftruncate(self._file, self._bytes_max)
        fcntl.fcntl(self._file, fcntl.F_ADD_SEALS, _SEALS)
        argument = {"paths": list(self._line_counts), "branch": asked.branch, "place": _PLACE}
        self.extra = GuestFeature("coverage", argument, (self._file,))

    def complete(self, evidence: Evidence) -> Evidence:
        """The evidence with the report in it. Everyone in the jail is dead by now; who was killed has none."""
        return dataclasses.replace(evidence, coverage=None if evidence.exit_code is None else self._read())

    def _read(self) -> CoverageReport | None:
        size = int.from_bytes(os.pread(self._file, _LENGTH_BYTES, 0), "little")
        if not 0 < size <= self._bytes_max - _LENGTH_BYTES:
            return None
        return read_report(os.pread(self._file, size, _LENGTH_BYTES), self._line_counts, self._asked)

    def close(self) -> None:
        """Let go of the report's memory."""
        os.close(self._file)


class _Report(msgspec.Struct):
    """What a guest says of one file."""

    path: str
    executed: list[int]
    missing: list[int]
    branches: int | None = None  # these two if branches were asked for
    missing_branches: list[tuple[int, int]] | None = None


_decode = msgspec.json.Decoder(list[_Report]).decode


def read_report(content: bytes, line_counts: Mapping[str, int], asked: Coverage) -> CoverageReport | None:
    """What a guest says it ran; None if it is anything but a report about these files."""
    try:
        told = _decode(content)
        if not 0 < len(told) <= len(line_counts) or len({each.path for each in told}) != len(told):
            return None
        read = [_read_file(each, line_counts[each.path], asked.branch) for each in told]
    except (msgspec.DecodeError, ValueError, LookupError, RecursionError):
        return None
    covered, counted = sum(hit for _, hit, _ in read), sum(of for _, _, of in read)
    return CoverageReport(percent=_percent(covered, counted), files=tuple(each for each, _, _ in read))


def _read_file(told: _Report, most: int, branch: bool) -> tuple[FileCoverage, int, int]:
    """One file of so many lines, with how much of it was covered, and of how much."""
    _check_rising(told.executed, 1, most)
    _check_rising(told.missing, 1, most)
    if not set(told.executed).isdisjoint(told.missing):
        raise ValueError("a line that ran and did not")
    covered, counted = len(told.executed), len(told.executed) + len(told.missing)
    arcs: tuple[tuple[int, int], ...] | None = None
    if branch:
        if told.branches is None or told.missing_branches is None:
            raise ValueError("nothing is said of branches")
        if not len(told.missing_branches) <= told.branches <= _BRANCHES_PER_LINE * most:
            raise ValueError("not a number of branches that can be meant")
        _check_arcs(told.missing_branches, most)
        arcs = tuple(told.missing_branches)
        covered += told.branches - len(arcs)
        counted += told.branches
    percent = _percent(covered, counted)
    executed, missing = tuple(told.executed), tuple(told.missing)
    file = FileCoverage(path=told.path, percent=percent, executed=executed, missing=missing, missing_branches=arcs)
    return file, covered, counted


def _check_rising(numbers: Sequence[int], least: int, most: int) -> None:
    before = least - 1
    for number in numbers:
        if number <= before:
            raise ValueError("twice, out of order, or too low")
        before = number
    if before > most:
        raise ValueError("past the end")


def _check_arcs(arcs: Sequence[tuple[int, int]], most: int) -> None:
    """From a line to a line; a negative one is coverage.py's word for the end of what starts there."""
    before = (-most, -most - 1)
    for arc in arcs:
        if arc <= before or not -most <= arc[1] <= most:
            raise ValueError("twice, out of order, or out of the file")
        before = arc
    if before[0] > most:
        raise ValueError("past the end")


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


def _bound_report(line_counts: Mapping[str, int], branch: bool) -> int:
    """How many bytes the longest report has that can be true: every line is said once, every number with a comma."""
    total = _LENGTH_BYTES
    for path, most in line_counts.items():
        digits = len(str(most))
        total += _FILE_BYTES + len(json.dumps(path)) + most * (digits + 1)
        if branch:
            total += _BRANCHES_PER_LINE * most * len("[-,-],") + _BRANCHES_PER_LINE * most * digits * 2
    return min(total, _REPORT_BYTES_MAX)


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
