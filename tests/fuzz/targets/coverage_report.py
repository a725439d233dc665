"""A coverage report, which the program can write as well."""

from __future__ import annotations

from belljar.backends.local.features.coverage import read_report
from belljar.contract.execution import Coverage

ALLOWED = ()
_LINES = {"main.py": 9, "a.py": 3}
TOKENS = (b'"path":"main.py"', b'"executed":[1,2]', b'"missing":[3]', b'"branches":2', b'"missing_branches":[[1,-1]]')


def run(data: bytes) -> None:
    for branch in (False, True):
        report = read_report(data, _LINES, Coverage(branch=branch))
        if report is not None:
            assert 0 <= report.percent <= 100
            for file in report.files:
                assert set(file.executed) | set(file.missing) <= set(range(1, _LINES[file.path] + 1))
