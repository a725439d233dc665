"""Notes, progress and tables for the user at the terminal.

`rich` is imported only when something is drawn: importing it takes longer than running a program.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from belljar.environments import Progress

_PIPED_WIDTH = 140  # columns for tables that go to a file or a pipe


def note(note: str) -> None:
    """Print a note on standard error, prefixed with `belljar: `. A closed standard error is ignored."""
    with contextlib.suppress(OSError, ValueError):
        print(f"belljar: {printable(note)}", file=sys.stderr, flush=True)


def printable(text: str) -> str:
    """Escape control characters: names and messages may come from an untrusted program."""
    return "".join(each if each.isprintable() or each == "\n" else repr(each)[1:-1] for each in text)


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


@contextlib.contextmanager
def progress() -> Iterator[Progress]:
    """Yield a function that reports progress: one changing line at a terminal, plain lines elsewhere."""
    if not sys.stderr.isatty():
        yield note
        return
    live = _LiveLine()
    try:
        yield live.show
    finally:
        live.stop()


class _LiveLine:
    """A spinner with the latest line; nothing is drawn before the first line."""

    def __init__(self) -> None:
        self._status: Any = None

    def show(self, line: str) -> None:
        from rich.console import Console
        from rich.text import Text

        text = Text(printable(line), overflow="ellipsis", no_wrap=True)
        if self._status is None:
            self._status = Console(stderr=True).status(text)
            self._status.start()
        else:
            self._status.update(text)

    def stop(self) -> None:
        if self._status is not None:
            self._status.stop()


def console(*, on_stderr: bool = False) -> Console:
    from rich.console import Console

    is_live = (sys.stderr if on_stderr else sys.stdout).isatty()
    return Console(highlight=False, stderr=on_stderr, width=None if is_live else _PIPED_WIDTH)


def draw_table(
    on: Console, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], numeric: bool = False
) -> None:
    """Draw rows of plain text. With `numeric`, all columns but the first are right-aligned."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if numeric and number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(cell), style=_STYLES.get(cell, "")) for cell in row))
    on.print(table)


_STYLES = {"ok": "green", "missing": "bold red", "broken": "bold red", "given up": "yellow", "note": "yellow"}
