"""Reads lines from a terminal, with editing and history, or from a pipe."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

_HISTORY_LINES_MAX = 5000
_INDENT = "    "


class Keyboard:
    def __init__(self, is_terminal: bool) -> None:
        self._is_terminal = is_terminal

    def read(self, prompt: str) -> str | None:
        """Return the next line without its newline, or None at the end. Ctrl-C raises KeyboardInterrupt."""
        if not self._is_terminal:
            line = sys.stdin.readline()
            return line.rstrip("\n") if line else None
        try:
            return input(prompt)
        except EOFError:
            print()
            return None


@contextlib.contextmanager
def editing(history: Path | None, commands: Sequence[str]) -> Iterator[None]:
    """Turn on line editing, completion of shell commands, and the history of earlier shells."""
    try:
        import readline
    except ImportError:  # some Pythons are built without readline
        yield
        return

    def complete(text: str, state: int) -> str | None:
        line = readline.get_line_buffer()
        if not line.strip():
            return _INDENT if state == 0 else None
        found = [each for each in commands if each.startswith(line)] if line.startswith(":") else []
        return found[state] if state < len(found) else None

    readline.set_completer(complete)
    readline.set_completer_delims("")
    readline.parse_and_bind("tab: complete")
    readline.set_history_length(_HISTORY_LINES_MAX)
    if history is not None:
        with contextlib.suppress(OSError):
            readline.read_history_file(history)
    try:
        yield
    finally:
        readline.set_completer(None)
        if history is not None:
            with contextlib.suppress(OSError):  # an unwritable history is not an error
                _write_private(history, readline)


def _write_private(history: Path, readline: object) -> None:
    """Write the history with mode 0600, as it may contain secrets."""
    history.parent.mkdir(parents=True, exist_ok=True)
    os.close(os.open(history, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
    readline.write_history_file(history)  # type: ignore[attr-defined]
