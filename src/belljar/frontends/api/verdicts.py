"""Compares the output of a program with what a case expects.

Large outputs are compared in a thread and in slices: one call that splits 16 MB would hold the interpreter, and with it
every other request, for a quarter of a second.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator

from belljar.contract.execution import Outcome, Status
from belljar.frontends.api.bodies import CaseBody, Comparison

PASSED, WRONG_ANSWER = "passed", "wrong_answer"

_AT_ONCE = 64 * 1024  # characters
_SLICE = 64 * 1024
_BLANK = re.compile(r"\s")


async def judge_case(case: CaseBody, outcome: Outcome, compare: Comparison) -> str:
    if not outcome.ok:
        return str(outcome.status)
    expected, seen = case.expected_stdout, outcome.stdout
    if expected is None:
        return PASSED
    if outcome.stdout_cut:  # what was dropped may have been right
        is_open = compare != "exact" or expected.startswith(seen)
        return str(Status.OUTPUT_LIMIT) if is_open else WRONG_ANSWER
    if compare == "exact" or len(seen) + len(expected) <= _AT_ONCE:
        is_equal = reduce(seen, compare) == reduce(expected, compare)
    else:
        is_equal = await asyncio.to_thread(lambda: reduce(seen, compare) == reduce(expected, compare))
    return PASSED if is_equal else WRONG_ANSWER


def reduce(text: str, compare: Comparison) -> str:
    """The part of a text that is compared: two texts match if this is equal."""
    if compare == "tokens":
        return " ".join(filter(None, (" ".join(piece.split()) for piece in _cut_at_blanks(text))))
    if compare == "trimmed":
        return "\n".join(_trim_lines(piece) for piece in _cut_at_newlines(text.strip()))
    return text


def _trim_lines(text: str) -> str:
    return "\n".join([line.rstrip() for line in text.split("\n")])


def _cut_at_blanks(text: str) -> Iterator[str]:
    at = begin = 0
    while (at := at + _SLICE) < len(text):
        if found := _BLANK.search(text, at, at + _SLICE):
            yield text[begin : found.start()]
            begin = at = found.end()
    yield text[begin:]


def _cut_at_newlines(text: str) -> Iterator[str]:
    begin = 0
    while (end := text.find("\n", begin + _SLICE)) >= 0:
        yield text[begin:end]
        begin = end + 1
    yield text[begin:]
