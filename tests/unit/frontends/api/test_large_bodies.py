"""Large bodies that callers may well send, and what the check of large bodies makes of them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from belljar.frontends.api.bodies import read_batch
from belljar.frontends.api.large_bodies import AT_ONCE_BYTES
from belljar.frontends.api.request import decode

COUNT = 10_000

SPACED = pytest.mark.parametrize("separators", [(", ", ": "), (",", ":")], ids=["spaced", "compact"])


def _read(asked: dict[str, Any], separators: tuple[str, str]) -> Any:
    body = json.dumps(asked, separators=separators).encode()
    assert len(body) > AT_ONCE_BYTES
    return asyncio.run(decode(body, read_batch, lambda batch: batch))


@SPACED
def test_as_many_cases_as_a_batch_may_have(separators: tuple[str, str]) -> None:
    cases = [
        {"stdin": f"{at} {at + 1}\n" * 4, "expected_stdout": f"{2 * at + 1}\n", "args": ["-v", "--n", str(at)]}
        for at in range(COUNT)
    ]
    read = _read({"code": "print(1)", "cases": cases}, separators).cases
    assert isinstance(read, list)
    assert [each.args for each in read] == [each["args"] for each in cases]
    assert [each.expected_stdout for each in read] == [each["expected_stdout"] for each in cases]


@SPACED
@pytest.mark.parametrize("size", [200, 900, 1800])
def test_as_many_programs_as_a_batch_may_have(separators: tuple[str, str], size: int) -> None:
    codes = [f"# {at}\n".ljust(size, "x") for at in range(COUNT)]
    read = _read({"executions": [{"code": code} for code in codes]}, separators).executions
    assert isinstance(read, list)
    assert [each.code for each in read] == codes
