"""The prompt of `belljar shell`: runs cells in the current session and handles commands that start with a colon."""

from __future__ import annotations

import contextlib
import shlex
import signal
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType

from belljar.contract.errors import BelljarError, CallerError, CannotBranch, NotFound, SessionEnded
from belljar.contract.execution import MIB, Display, Event, Finished, Limits, Outcome, Output
from belljar.contract.files import File
from belljar.frontends.cli import save_artifacts, terminal
from belljar.frontends.cli.shell.cell_reader import Cell
from belljar.frontends.cli.shell.keyboard import Keyboard
from belljar.frontends.cli.shell.screen import Screen
from belljar.frontends.cli.shell.session_hosts import LiveSession, Loop, SessionHost

_LEAVING = {"exit", "quit", "exit()", "quit()", ".exit"}
_INTERRUPTS_MAX = 3  # of one cell; the last one abandons it, even if that ends the session

HELP = """\
:branch [N]             copy the live state N times (default 1); use :switch to go there
:sessions               list the sessions of this shell
:switch N               continue in session N
:back [N]               undo the last N cells (default 1); only with --branch
:close [N]              close session N (default: the current one)
:upload FILE [PATH]     copy a file into the work directory
:download PATH [FILE]   copy a file from the work directory
:files                  list the work directory
:timeout SECONDS        set the time limit of each cell from now on
:help                   show this help
:quit                   leave the shell (or press Ctrl-D)
Ctrl-C interrupts the running cell. A blank line ends a block."""


@dataclass(slots=True)
class _State:
    """A live session on the host, and the number of its next cell."""

    live: LiveSession
    next_cell: int
    is_ours: bool = True  # false if the shell joined it; then it stays open


@dataclass(slots=True)
class _Session:
    """A numbered session of this shell: its current state and, with --branch, the states before the last cells."""

    number: int
    state: _State
    parent: int | None
    limits: Limits
    earlier: list[_State] = field(default_factory=list)  # newest last

    @property
    def live(self) -> LiveSession:
        return self.state.live


class Prompt:
    """Reads cells and commands from a terminal or a pipe, and owns the sessions they run in."""

    def __init__(self, loop: Loop, host: SessionHost, screen: Screen, *, keeps_states: bool) -> None:
        self._loop = loop
        self._host = host
        self._screen = screen
        self._keyboard = Keyboard(screen.is_terminal)
        self._cell = Cell("")
        self._keeps_states = keeps_states
        self._timeout: float | None = None
        self._sessions: dict[int, _Session] = {}
        self._last_number = 0
        self._has_failed = False
        self.commands: dict[str, Callable[[list[str]], object]] = {
            "branch": self._branch,
            "sessions": self._list,
            "switch": self._switch,
            "back": self._go_back,
            "close": self._close,
            "upload": self._upload,
            "download": self._download,
            "files": self._list_files,
            "timeout": self._set_timeout,
            "help": lambda _: print(HELP),
        }

    def start(self, session_id: str | None) -> None:
        """Open a session, or join one. Raises BelljarError."""
        opening = self._host.open() if session_id is None else self._host.attach(session_id)
        live = self._loop.do(opening)
        self._current = self._add_session(live, None)
        self._current.state.is_ours = session_id is None
        self._cell = Cell(self._loop.do(live.state()).language)
        if self._screen.is_terminal:
            print(f"session {self._current.live.id} · :help lists commands, Ctrl-D leaves")

    def run(self) -> int:
        """Read and run cells until the end of input; return the exit code."""
        while True:
            try:
                session = f"{self._current.number}|" if len(self._sessions) > 1 else ""
                prompt = self._screen.prompt(self._current.state.next_cell, session, self._cell.is_begun)
                line = self._keyboard.read(prompt)
            except KeyboardInterrupt:
                print()
                self._cell.end()
                continue
            if line is None:
                self._run(self._cell.end())
                break
            if not self._cell.is_begun and line.strip() in _LEAVING | {":quit", ":q"}:
                break
            if not self._cell.is_begun and line[:1] == ":" and line[1:2].isalpha():
                self._run_command(line)
                continue
            code = self._cell.add(line) or (self._cell.end() if "\n" in line else "")  # several lines at once: pasted
            self._run(code)
        return 1 if self._has_failed and not self._screen.is_terminal else 0

    def leave(self) -> None:
        """Close every session that the shell opened."""
        for session in self._sessions.values():
            for state in (session.state, *session.earlier):
                with contextlib.suppress(BelljarError):
                    self._close_state(state)

    # ---- cells

    def _run(self, code: str) -> None:
        if not code.strip():
            return
        try:
            if self._keeps_states:
                self._remember()
            outcome = self._watch(code)
        except KeyboardInterrupt:
            print()
            return
        except SessionEnded as error:
            self._screen.note(error.message)
            self._replace()
            self._has_failed = True
            return
        except BelljarError as error:
            self._screen.note(error.message)
            self._has_failed = True
            return
        self._has_failed |= outcome is None or not outcome.ok
        self._replace_if_ended()

    def _watch(self, code: str) -> Outcome | None:
        """Run a cell and show its output; return None if it was abandoned."""
        live = self._current.live
        self._screen.begin(self._current.state.next_cell)
        events = live.stream(code, self._timeout)
        with self._interrupting(live) as is_abandoned:
            while not is_abandoned():
                pending = self._loop.start(_next(events))
                while not pending.done():
                    with contextlib.suppress(TimeoutError):
                        pending.exception(0.5)  # in short steps, so that signal handlers can run
                    if is_abandoned():
                        pending.cancel()
                        break
                if pending.cancelled() or is_abandoned():
                    break
                event = pending.result()
                if isinstance(event, Output):
                    self._screen.output(event)
                elif isinstance(event, Display):
                    self._screen.display(event)
                elif isinstance(event, Finished):
                    state = self._current.state
                    state.next_cell = (event.outcome.cell or state.next_cell) + 1
                    self._screen.finish(event.outcome, self._limits())
                    return event.outcome
        self._loop.do(_end(events))
        self._screen.note("cell abandoned")
        return None

    def _limits(self) -> Limits:
        """The session's limits, with the time limit set by :timeout."""
        limits = self._current.limits
        return limits if self._timeout is None else replace(limits, wall_seconds=self._timeout)

    @contextlib.contextmanager
    def _interrupting(self, live: LiveSession) -> Iterator[Callable[[], bool]]:
        """Let Ctrl-C interrupt the cell; yield a function that returns whether the user gave up on it."""
        pressed = 0

        def interrupt(_number: int, _frame: FrameType | None) -> None:
            nonlocal pressed
            pressed += 1
            if pressed < _INTERRUPTS_MAX:
                self._loop.start(_interrupt(live))

        before = signal.signal(signal.SIGINT, interrupt)
        try:
            yield lambda: pressed >= _INTERRUPTS_MAX
        finally:
            signal.signal(signal.SIGINT, before)

    def _replace_if_ended(self) -> None:
        try:
            self._loop.do(self._current.live.state())
        except NotFound as error:
            self._screen.note(error.message)
            self._replace()
        except BelljarError as error:
            self._screen.note(error.message)

    def _replace(self) -> None:
        """Replace a lost session by its state before the last cell, by another session, or by a new one."""
        if self._current.earlier:
            self._current.state = self._current.earlier.pop()
            self._screen.note("back to the state before that cell")
            return
        del self._sessions[self._current.number]
        if self._sessions:
            self._current = next(reversed(self._sessions.values()))
            self._screen.note(f"now in session {self._current.number}")
        else:
            self._current = self._add_session(self._loop.do(self._host.open()), None)
            self._screen.note("opened a new session; the state of the old one is lost")

    # ---- branches

    def _add_session(self, live: LiveSession, parent: _Session | None) -> _Session:
        self._last_number += 1
        state = self._loop.do(live.state())
        session = _Session(
            number=self._last_number,
            state=_State(live, state.cells + 1),
            parent=None if parent is None else parent.number,
            limits=state.limits,
        )
        self._sessions[session.number] = session
        return session

    def _remember(self) -> None:
        """Keep the state before a cell. In a joined session, which must not change, the cell runs in the copy.

        Otherwise it runs in the original, because the depth of branches of branches is limited.
        """
        now = self._current.state
        try:
            copy = _State(self._loop.do(now.live.branch(reseed=False)), now.next_cell)
        except CannotBranch as error:
            if not now.is_ours:
                raise CallerError(f"not run, because it would change the joined session: {error.message}") from error
            self._screen.note(f"this cell cannot be undone: {error.message}")
            return
        kept, self._current.state = (copy, now) if now.is_ours else (now, copy)
        self._current.earlier.append(kept)
        if len(self._current.earlier) > _EARLIER_MAX:
            self._close_state(self._current.earlier.pop(0))

    def _go_back(self, words: list[str]) -> None:
        count, session = _number(words, 1), self._current
        if not session.earlier:
            advice = "no earlier one is kept" if self._keeps_states else "start the shell with --branch"
            raise CallerError(f"no state to go back to; {advice}")
        for _ in range(min(count, len(session.earlier))):
            self._close_state(session.state)
            session.state = session.earlier.pop()
        self._screen.note(f"back to the state before cell {session.state.next_cell}")

    def _branch(self, words: list[str]) -> None:
        for _ in range(_number(words, 1)):
            session = self._add_session(self._loop.do(self._current.live.branch(reseed=True)), self._current)
            self._screen.note(
                f"session {session.number} is a branch of {self._current.number}; switch with :switch {session.number}"
            )

    def _switch(self, words: list[str]) -> None:
        self._current = self._find(_number(words, 0))

    def _close(self, words: list[str]) -> None:
        session = self._find(_number(words, self._current.number))
        while session.earlier:
            self._close_state(session.earlier.pop())
        self._close_state(session.state)
        if session is self._current:
            self._replace()
        else:
            del self._sessions[session.number]

    def _close_state(self, state: _State) -> None:
        if state.is_ours:
            with contextlib.suppress(NotFound):
                self._loop.do(state.live.close())

    def _find(self, number: int) -> _Session:
        if number not in self._sessions:
            raise CallerError(f"unknown session {number}; list the sessions with :sessions")
        return self._sessions[number]

    def _list(self, _words: list[str]) -> None:
        rows = []
        for session in self._sessions.values():
            try:
                state = self._loop.do(session.live.state())
                facts = [str(state.cells), f"{state.memory_bytes / MIB:.1f}"]
            except NotFound as error:
                facts = [error.message, ""]
            mark = "→" if session is self._current else ""
            rows.append([f"{mark}{session.number}", session.live.id, str(session.parent or "–"), *facts])
        columns = ["", "id", "branch of", "cells", "MB"]
        terminal.draw_table(terminal.console(), terminal.count(len(rows), "session"), columns, rows)

    # ---- files

    def _upload(self, words: list[str]) -> None:
        local, path = _names(words, ":upload FILE [PATH]")
        try:
            content = Path(local).expanduser().read_bytes()
        except OSError as error:
            raise CallerError(f"cannot read {local}: {error.strerror}") from error
        path = path or Path(local).name
        self._loop.do(self._current.live.upload(path, content))
        self._screen.note(f"uploaded {len(content):,} bytes to {path}")

    def _download(self, words: list[str]) -> None:
        path, local = _names(words, ":download PATH [FILE]")
        target = Path(local or Path(path).name).expanduser()
        content = self._loop.do(self._current.live.download(path))
        save_artifacts.save(target.parent, [File(path=target.name, content=content)], replace=False)
        self._screen.note(f"downloaded {len(content):,} bytes to {target}")

    def _list_files(self, _words: list[str]) -> None:
        for each in self._loop.do(self._current.live.files()):
            print(f"{each.size_bytes:>12,}  {terminal.printable(each.path)}")

    # ---- commands

    def _set_timeout(self, words: list[str]) -> None:
        try:
            self._timeout = float(words[0]) if words else None
        except ValueError:
            raise CallerError(f"{words[0]!r} is not a number; usage: :timeout SECONDS") from None

    def _run_command(self, line: str) -> None:
        try:
            name, *words = shlex.split(line[1:])
            command = self.commands.get(name)
            if command is None:
                raise CallerError(f"unknown command :{name}; list the commands with :help")
            command(words)
        except (BelljarError, ValueError) as error:
            self._screen.note(str(error))
            self._has_failed = True
        except KeyboardInterrupt:
            print()


_EARLIER_MAX = 8  # states kept by --branch


def _number(words: list[str], default: int) -> int:
    if not words:
        return default
    if not (words[0].isascii() and words[0].isdigit()):
        raise CallerError(f"{words[0]!r} is not a whole number")
    return int(words[0])


def _names(words: list[str], usage: str) -> tuple[str, str]:
    if not 1 <= len(words) <= 2:
        raise CallerError(f"usage: {usage}")
    return words[0], words[1] if len(words) == 2 else ""


async def _next(events: AsyncGenerator[Event, None]) -> Event | None:
    return await anext(events, None)


async def _end(events: AsyncGenerator[Event, None]) -> None:
    await events.aclose()


async def _interrupt(live: LiveSession) -> None:
    with contextlib.suppress(BelljarError):  # the cell may have finished, or its session ended
        await live.interrupt()
