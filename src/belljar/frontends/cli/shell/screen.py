"""Shows the output, values and errors of cells, and saves their pictures as files.

`rich` is imported only when something is coloured, which is never the case in a pipe.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TextIO

from belljar.contract.execution import MIB, Display, Limits, Outcome, Output, Status
from belljar.contract.files import File
from belljar.frontends.cli import save_artifacts, terminal

_ANSI = {"red": "\x1b[31m", "green": "\x1b[32m", "dim": "\x1b[2m", "bold": "\x1b[1m"}
_OFF = "\x1b[0m"
_SHOWN_AS_NOTE = ("SessionEnded",)


class Screen:
    """Standard output and error, and a directory for pictures."""

    def __init__(self, pictures: Path) -> None:
        self.is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
        self._pictures = pictures
        self._has_colours = self.is_terminal and not terminal.console().no_color
        self._line_is_open = False
        self.begin(0)

    def prompt(self, number: int, session: str, is_more: bool) -> str:
        """The prompt of a line; colour codes are marked as zero-width for readline."""
        text = f"{session}In [{number}]: "
        if is_more:
            return " " * (len(text) - 5) + "...: "
        if not self._has_colours:
            return text
        return f"\x01{_ANSI['green']}\x02{text}\x01{_OFF}\x02"

    def begin(self, number: int) -> None:
        """Prepare for the output of cell `number`."""
        self._number = number
        self._errors_shown = ""
        self._texts: set[int | None] = set()
        self._others: list[Display] = []
        self._saved = 0

    def output(self, event: Output) -> None:
        to_errors = event.stream == "stderr"
        self._write(sys.stderr if to_errors else sys.stdout, event.text, "red" if to_errors else "")
        self._line_is_open = not event.text.endswith("\n")
        self._errors_shown += event.text if to_errors else ""

    def display(self, display: Display) -> None:
        """Show a value or save a picture. Richer forms of a value wait for `finish`, in case plain text follows."""
        if display.mime.startswith("image/"):
            self._save(display)
        elif display.mime == "text/plain":
            self._texts.add(display.bundle)
            self._show_value(display)
        else:
            self._others.append(display)

    def finish(self, outcome: Outcome, limits: Limits) -> None:
        """Show what remains of a finished cell: values without plain text, the traceback, and notes."""
        for each in self._others:
            if each.bundle not in self._texts:  # else its plain text was shown
                self._texts.add(each.bundle)
                self._show_value(each)
        error = outcome.error
        if error is not None and error.type not in _SHOWN_AS_NOTE and error.type not in self._errors_shown:
            trace = "".join(line if line.endswith("\n") else line + "\n" for line in error.traceback)
            self._close_line()
            self._write(sys.stderr, trace or f"{error.type}: {error.message}\n", "red")
        self._close_line()
        for note in _notes(outcome, limits):
            self.note(note)

    def note(self, text: str) -> None:
        self._close_line()
        terminal.note(text)

    def _show_value(self, display: Display) -> None:
        text = terminal.printable(display.content.decode("utf-8", "replace"))
        self._close_line()
        if not self._has_colours:
            label = f"Out[{self._number}]: " if self.is_terminal and display.is_result else ""
            self._write(sys.stdout, label + ("\n" if label and "\n" in text else "") + text + "\n")
            return
        from rich.highlighter import ReprHighlighter

        console = terminal.console()
        if display.is_result:
            console.print(f"Out[{self._number}]: ", style="red", end="\n" if "\n" in text else "", markup=False)
        console.print(ReprHighlighter()(text), soft_wrap=True)

    def _save(self, display: Display) -> None:
        (file,) = save_artifacts.as_files([display])
        suffix = Path(file.path).suffix
        while True:
            self._saved += 1
            name = f"cell-{self._number}-{self._saved}{suffix}"
            if not os.path.lexists(self._pictures / name):
                break
        save_artifacts.save(self._pictures, [File(path=name, content=display.content)], replace=False)
        self.note(f"picture saved as {self._pictures / name}")

    def _close_line(self) -> None:
        if self._line_is_open:
            self._write(sys.stdout, "\n")
            self._line_is_open = False

    def _write(self, stream: TextIO, text: str, colour: str = "") -> None:
        if colour and self._has_colours:
            text = f"{_ANSI[colour]}{text}{_OFF}"
        stream.write(text)
        stream.flush()


def _notes(outcome: Outcome, limits: Limits) -> list[str]:
    notes = []
    if outcome.status is Status.TIMED_OUT:
        notes.append(f"timed out after {limits.wall_seconds:g} s; raise the limit with :timeout")
    elif outcome.status is Status.OUT_OF_MEMORY:
        notes.append(f"killed: out of memory ({limits.memory_bytes / MIB:g} MB); raise the limit with --memory")
    elif outcome.status is Status.OUTPUT_LIMIT:
        notes.append("killed: too much output")
    elif outcome.status is Status.CRASHED:
        notes.append(f"killed by {outcome.signal}")
    for stream, was_cut in (("output", outcome.stdout_cut), ("error output", outcome.stderr_cut)):
        if was_cut:
            notes.append(f"{stream} truncated after {limits.output_bytes / 1024:g} KB")
    return notes
