"""The uncaught exception of a Python program, read from the end of its own standard error.

Read from text, not reported by the guest: the program could forge a report as well, and text is all that other
interpreters give. So this is a convenience for callers, never evidence: a program can print any traceback it likes.
Nothing may be decided by it.

The text is hostile: only its last part is read, once, line by line.
"""

from __future__ import annotations

import re

from belljar.contract.execution import ProgramError

TAIL_CHARACTERS = 64 * 1024

_HEADER = "Traceback (most recent call last):"
_FRAME = '  File "'
_GROUP_HEADER = "  + Exception Group Traceback (most recent call last):"
_GROUP_MARGIN = "  | "
_SYNTAX_ERRORS = frozenset({"SyntaxError", "IndentationError", "TabError"})  # these can come without a header
#: Above a traceback: that exception did not end the program. Below one: its message is over.
_NOT_FATAL = ("Exception in thread ", "Exception ignored ", "Error in atexit.", "Task exception was never", "future: <")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def read_error(stderr: str) -> ProgramError | None:
    """Return the exception that the end of `stderr` shows, or None if it shows none.

    Of chained exceptions the last, of an exception group the group. Notes are part of the message.
    """
    lines = _last_lines(stderr)
    block = _last_block(lines)
    if block is None:
        return None
    start, at = block
    end = _find(lines, at + 1, _NOT_FATAL)
    is_group = lines[start] == _GROUP_HEADER
    message = lines[at : _find(lines, at + 1, ("  +",)) if is_group else end]
    first, *more = [line.removeprefix(_GROUP_MARGIN) for line in message] if is_group else message
    text = "\n".join([first.partition(": ")[2], *more]).rstrip("\n")
    return ProgramError(type=_type_in(first), message=text, traceback=tuple(lines[start:end]))


def _last_lines(stderr: str) -> list[str]:
    tail = stderr[-TAIL_CHARACTERS:]
    if "\x1b" in tail:
        tail = _COLOUR.sub("", tail)
    lines = tail.rstrip("\n").split("\n")
    if len(stderr) > TAIL_CHARACTERS:
        lines[0] = _HEADER  # a tail that opens amid frames reads as a traceback whose first frames are missing
    return lines


def _last_block(lines: list[str]) -> tuple[int, int] | None:
    """Where the last fatal traceback starts, and the line of its exception."""
    found = None
    at = 0
    while at < len(lines):
        start, line = at, lines[at]
        at += 1
        if line == _GROUP_HEADER:
            indent = _GROUP_MARGIN + "  "
        elif line == _HEADER or line.startswith(_FRAME):
            indent = "  "
        else:
            continue
        while at < len(lines) and lines[at].startswith(indent):
            at += 1
        is_fatal = start == 0 or not lines[start - 1].startswith(_NOT_FATAL)
        if is_fatal and at < len(lines) and at > start + 1 and _is_exception_line(line, lines[at]):
            found = start, at
    return found


def _is_exception_line(opening: str, line: str) -> bool:
    if opening == _GROUP_HEADER:
        return line.startswith(_GROUP_MARGIN) and bool(_type_in(line[len(_GROUP_MARGIN) :]))
    if opening == _HEADER:
        return bool(_type_in(line))
    return _type_in(line) in _SYNTAX_ERRORS


def _type_in(line: str) -> str:
    """The last part of the dotted type in `json.decoder.JSONDecodeError: …`; empty if that is not what it is."""
    parts = line.partition(": ")[0].split(".")
    return parts[-1] if all(part.isidentifier() or part == "<locals>" for part in parts) else ""


def _find(lines: list[str], at: int, openings: tuple[str, ...]) -> int:
    """The first line from `at` on with one of these openings, or the end."""
    while at < len(lines) and not lines[at].startswith(openings):
        at += 1
    return at
