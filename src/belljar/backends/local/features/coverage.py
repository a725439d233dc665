"""Coverage as a program's own interpreter reports it, checked to the last number.

The report is written beside the program, so a hostile program can forge it. It may lie about what ran, and about
nothing else: every file is one that the host sent, every line is in it, and the percentages are computed here.

It comes in a file in memory whose size is sealed: the guest cannot make it larger, nor smaller while it is read. That
size, and every list in it, is bounded by the lines that the host sent, and nothing may be listed twice: a forged report
takes no longer to read than an honest one of such a program.
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
_FILE_BYTES = 128  # for the field names of each file, and two numbers
_BRANCHES_PER_LINE = 8  # on average; most have none, few more than two
_PLACE = f"{policy.ENVIRONMENT_DIR}/share/instruments"
_SEALS = fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL


class Measurement(HostFeature):
    """The host's part of one measurement. Owns a descriptor: close it."""

    def __init__(self, execution: Execution, wanted: Coverage, environment: Environment) -> None:
        """Raises NotOffered: the environment has no coverage.py."""
        if not environment.measures_coverage:
            raise _not_offered(environment)
        self._wanted = wanted
        self._line_counts = _count_lines(execution)
        self._file = os.memfd_create("coverage", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self._bytes_max = _bound_report(self._line_counts, wanted.branch)
        os.ftruncate(self._file, self._bytes_max)
        fcntl.fcntl(self._file, fcntl.F_ADD_SEALS, _SEALS)
        argument = {"paths": list(self._line_counts), "branch": wanted.branch, "place": _PLACE}
        self.feature = GuestFeature("coverage", argument, (self._file,))

    def complete(self, evidence: Evidence) -> Evidence:
        """The evidence with the report in it; a program that was killed has none."""
        return dataclasses.replace(evidence, coverage=None if evidence.exit_code is None else self._read())

    def _read(self) -> CoverageReport | None:
        size = int.from_bytes(os.pread(self._file, _LENGTH_BYTES, 0), "little")
        if not 0 < size <= self._bytes_max - _LENGTH_BYTES:
            return None
        return read_report(os.pread(self._file, size, _LENGTH_BYTES), self._line_counts, self._wanted)

    def close(self) -> None:
        """Free the report's memory."""
        os.close(self._file)


class _Report(msgspec.Struct):
    """The report on one file, as a guest sends it."""

    path: str
    executed: list[int]
    missing: list[int]
    branches: int | None = None  # these two if branches were measured
    missing_branches: list[tuple[int, int]] | None = None


_decode = msgspec.json.Decoder(list[_Report]).decode


def read_report(content: bytes, line_counts: Mapping[str, int], wanted: Coverage) -> CoverageReport | None:
    """Parse a guest's report; None if it is anything but a report on these files."""
    try:
        reports = _decode(content)
        if not 0 < len(reports) <= len(line_counts) or len({each.path for each in reports}) != len(reports):
            return None
        read = [_read_file(each, line_counts[each.path], wanted.branch) for each in reports]
    except (msgspec.DecodeError, ValueError, LookupError, RecursionError):
        return None
    covered, counted = sum(hit for _, hit, _ in read), sum(of for _, _, of in read)
    return CoverageReport(percent=_percent(covered, counted), files=tuple(each for each, _, _ in read))


def _read_file(report: _Report, most: int, branch: bool) -> tuple[FileCoverage, int, int]:
    """The coverage of a file with `most` lines, how many lines and branches were covered, and of how many."""
    _check_rising(report.executed, 1, most)
    _check_rising(report.missing, 1, most)
    if not set(report.executed).isdisjoint(report.missing):
        raise ValueError("a line both ran and did not")
    covered, counted = len(report.executed), len(report.executed) + len(report.missing)
    arcs: tuple[tuple[int, int], ...] | None = None
    if branch:
        if report.branches is None or report.missing_branches is None:
            raise ValueError("branches are missing")
        if not len(report.missing_branches) <= report.branches <= _BRANCHES_PER_LINE * most:
            raise ValueError("too many branches")
        _check_arcs(report.missing_branches, most)
        arcs = tuple(report.missing_branches)
        covered += report.branches - len(arcs)
        counted += report.branches
    percent = _percent(covered, counted)
    executed, missing = tuple(report.executed), tuple(report.missing)
    file = FileCoverage(path=report.path, percent=percent, executed=executed, missing=missing, missing_branches=arcs)
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
    """Arcs go from a line to a line; coverage.py writes a negative one for the end of what starts there."""
    before = (-most, -most - 1)
    for arc in arcs:
        if arc <= before or not -most <= arc[1] <= most:
            raise ValueError("twice, out of order, or out of the file")
        before = arc
    if before[0] > most:
        raise ValueError("past the end")


def _percent(covered: int, counted: int) -> float:
    """As coverage.py computes it: nothing to cover is 100, only all is 100, and only nothing is 0."""
    if not counted:
        return 100.0
    percent = round(100 * covered / counted, 2)
    return min(max(percent, 0.01 if covered else 0.0), 100.0 if covered == counted else 99.99)


def _count_lines(execution: Execution) -> dict[str, int]:
    """The Python files of a program, each with the highest line number that it may have."""
    files = {policy.PROGRAM_NAME: execution.code.encode()}
    files.update({file.path: file.content for file in execution.files if file.path.endswith(".py")})
    return {path: _bound_lines(content) for path, content in files.items()}


def _bound_report(line_counts: Mapping[str, int], branch: bool) -> int:
    """The size of the longest report that can be true: every line is listed once, with a comma."""
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
