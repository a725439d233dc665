"""Joins the lines that a user types into complete cells.

Completeness is a guess: in doubt the cell is complete, and the interpreter in the sandbox reports what is wrong with
it. No line is ever run here.
"""

from __future__ import annotations

import ast
import codeop
import re
import warnings
from collections.abc import Callable

_OPENING, _CLOSING = "([{", ")]}"
_BASH_OPENING = {"if", "do", "case", "{"}
_BASH_CLOSING = {"fi", "done", "esac", "}"}


class Cell:
    """The lines of the current cell."""

    def __init__(self, language: str) -> None:
        self._is_complete: Callable[[str], bool] = {"python": _python_is_complete, "bash": _bash_is_complete}.get(
            language, _brackets_are_closed
        )
        self._lines: list[str] = []

    @property
    def is_begun(self) -> bool:
        return bool(self._lines)

    def add(self, line: str) -> str | None:
        """Add a line; return the code once the cell is complete. Leading blank lines are ignored."""
        if not self._lines and not line.strip():
            return None
        self._lines.append(line if line.strip() else "")
        return self.end() if self._is_complete("\n".join(self._lines)) else None

    def end(self) -> str:
        """Return the lines so far, complete or not, and start a new cell."""
        code, self._lines = "\n".join(self._lines), []
        return code.rstrip() + "\n" if code.strip() else ""


_compile = codeop.CommandCompiler()
_compile.compiler.flags |= ast.PyCF_ALLOW_TOP_LEVEL_AWAIT


def _python_is_complete(code: str) -> bool:
    """The rules of IPython: blocks and cell magics end with a blank line, line magics with their own line."""
    if code.lstrip().startswith("%%"):
        return code.endswith("\n")
    plain = re.sub(r"^(\s*)[%!?].*$", r"\1pass", code, flags=re.MULTILINE)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _compile(plain, "<cell>", "single") is not None
    except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError):
        return True  # the interpreter in the sandbox reports the error


def _brackets_are_closed(code: str) -> bool:
    """For JavaScript and similar languages; a blank line always ends a cell."""
    return code.endswith("\n") or _open_brackets(_without_text(code)) <= 0


def _bash_is_complete(code: str) -> bool:
    if code.endswith("\\"):
        return False
    bare = _without_text(code)
    if bare is None:
        return False
    words = re.split(r"[\s;&|()]+", bare)
    return sum(word in _BASH_OPENING for word in words) <= sum(word in _BASH_CLOSING for word in words)


def _open_brackets(bare: str | None) -> int:
    if bare is None:
        return 1
    return sum(bare.count(each) for each in _OPENING) - sum(bare.count(each) for each in _CLOSING)


def _without_text(code: str) -> str | None:
    """The code without string literals and line comments; None if a quote is still open."""
    bare, quote, escaped = [], "", False
    for at, each in enumerate(code):
        if escaped:
            escaped = False
        elif each == "\\":
            escaped = True
        elif quote:
            if each == quote or (quote == "\n" and each == "\n"):
                quote = ""
        elif each in "\"'`":
            quote = each
        elif code.startswith("//", at) or (each == "#" and (at == 0 or code[at - 1].isspace())):
            quote = "\n"
        else:
            bare.append(each)
    return None if quote and quote != "\n" else "".join(bare)
