"""The conversation of `belljar shell`: cells go to the current session, lines with a colon to us."""

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
from belljar.frontends.cli.shell.session_hosts import Live, Loop, SessionHost

_LEAVING = {"exit", "quit", "exit()", "quit()", ".exit"}
_PATIENCE = 3  # interrupts of one cell; the last one gives it up, whatever becomes of the session

HELP = """\
:branch [N]             copy the live state N times (once); :switch goes there
:sessions               list the sessions of this shell
:switch N               go on in session N
:back [N]               undo the last N cells (one); only with --branch
:close [N]              close session N (this one)
:upload FILE [PATH]     put a file into the work directory
:download PATH [FILE]   fetch a file from there
:files                  list the work directory
:timeout SECONDS        how long a cell may take from now on
:help                   show this
:quit                   leave; so does Ctrl-D
Ctrl-C interrupts the cell that runs. A blank line ends a block."""


@dataclass(slots=True)
class _State:
    """A live session."""

    live: Live
    next_cell: int
    is_ours: bool = True  # one that we only joined is not ours to close


@dataclass(slots=True)
class _Seat:
    """A session of this shell, by the number it has here."""

    number: int
    state: _State
    parent: int | None
    limits: Limits
    trail: list[_State] = field(default_factory=list)  # as it was before the last cells, the newest last

    @property
    def live(self) -> Live:
        return self.state.live


class Prompt:
    """One person, or one pipe, and the sessions they use."""

    def __init__(self, loop: Loop, place: SessionHost, screen: Screen, *, keeps_states: bool) -> None:
        self._loop = loop
        self._place = place
        self._screen = screen
        self._keyboard = Keyboard(screen.is_terminal)
        self._cell = Cell("")
        self._keeps_states = keeps_states
        self._timeout: float | None = None
        self._seats: dict[int, _Seat] = {}
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
        opening = self._place.open() if session_id is None else self._place.attach(session_id)
        live = self._loop.do(opening)
        self._now = self._take_seat(live, None)
        self._now.state.is_ours = session_id is None
        self._cell = Cell(self._loop.do(live.state()).language)
        if self._screen.is_terminal:
            print(f"session {self._now.live.id} · :help lists commands, Ctrl-D leaves")

    def converse(self) -> int:
        """Read and run until there is no more; the exit code."""
        while True:
            try:
                line = self._keyboard.read(self._prompt())
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
                self._obey(line)
                continue
            code = self._cell.add(line) or (self._cell.end() if "\n" in line else "")  # several at once: pasted
            self._run(code)
        return 1 if self._has_failed and not self._screen.is_terminal else 0

    def leave(self) -> None:
        """Close every session that is ours."""
        for seat in self._seats.values():
            for state in (seat.state, *seat.trail):
                with contextlib.suppress(BelljarError):
                    self._close_state(state)

    def _prompt(self) -> str:
        session = f"{self._now.number}|" if len(self._seats) > 1 else ""
        return self._screen.prompt(self._now.state.next_cell, session, self._cell.is_begun)

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
        """Run a cell and show what it does; None when it was given up."""
        live = self._now.live
        self._screen.begin(self._now.state.next_cell)
        events = live.stream(code, self._timeout)
        with self._interrupting(live) as is_given_up:
            while not is_given_up():
                pending = self._loop.start(_next(events))
                while not pending.done():
                    with contextlib.suppress(TimeoutError):
                        pending.exception(0.5)  # in steps: a signal handler runs between two of them at the latest
                    if is_given_up():
                        pending.cancel()
                        break
                if pending.cancelled() or is_given_up():
                    break
                event = pending.result()
                if isinstance(event, Output):
                    self._screen.output(event)
                elif isinstance(event, Display):
                    self._screen.display(event)
                elif isinstance(event, Finished):
                    state = self._now.state
                    state.next_cell = (event.outcome.cell or state.next_cell) + 1
                    self._screen.finish(event.outcome, self._limits())
                    return event.outcome
        self._loop.do(_end(events))
        self._screen.note("the cell was given up")
        return None

    def _limits(self) -> Limits:
        """What a cell may use: the session's limits, but for :timeout."""
        limits = self._now.limits
        return limits if self._timeout is None else replace(limits, wall_seconds=self._timeout)

    @contextlib.contextmanager
    def _interrupting(self, live: Live) -> Iterator[Callable[[], bool]]:
        """Ctrl-C goes to the cell, not to us; gives a function that tells when it was pressed too often."""
        pressed = 0

        def interrupt(_number: int, _frame: FrameType | None) -> None:
            nonlocal pressed
            pressed += 1
            if pressed < _PATIENCE:
                self._loop.start(_suppressing(live))

        before = signal.signal(signal.SIGINT, interrupt)
        try:
            yield lambda: pressed >= _PATIENCE
        finally:
            signal.signal(signal.SIGINT, before)

    def _replace_if_ended(self) -> None:
        try:
            self._loop.do(self._now.live.state())
        except NotFound as error:
            self._screen.note(error.message)
            self._replace()
        except BelljarError as error:
            self._screen.note(error.message)

    def _replace(self) -> None:
        """The session is gone: go on in the state before, in another, or in a new one."""
        if self._now.trail:
            self._now.state = self._now.trail.pop()
            self._screen.note("back to the state before that cell")
            return
        del self._seats[self._now.number]
        if self._seats:
            self._now = next(reversed(self._seats.values()))
            self._screen.note(f"now in session {self._now.number}")
        else:
            self._now = self._take_seat(self._loop.do(self._place.open()), None)
            self._screen.note("a new session was opened; what the old one knew is lost")

    # ---- branches

    def _take_seat(self, live: Live, parent: _Seat | None) -> _Seat:
        self._last_number += 1
        state = self._loop.do(live.state())
        seat = _Seat(
            number=self._last_number,
            state=_State(live, state.cells + 1),
            parent=None if parent is None else parent.number,
            limits=state.limits,
        )
        self._seats[seat.number] = seat
        return seat

    def _remember(self) -> None:
        """Keep a copy of the state before a cell. A session that is not ours is left alone: the cell runs in the copy.

        What runs on is the original wherever that may be: branches of branches can only be made so often.
        """
        now = self._now.state
        try:
            copy = _State(self._loop.do(now.live.branch(reseed=False)), now.next_cell)
        except CannotBranch as error:
            if not now.is_ours:
                raise CallerError(
                    f"not run, since it would change a session of somebody else: {error.message}"
                ) from error
            self._screen.note(f"this cell cannot be undone: {error.message}")
            return
        kept, self._now.state = (copy, now) if now.is_ours else (now, copy)
        self._now.trail.append(kept)
        if len(self._now.trail) > _TRAIL_MAX:
            self._close_state(self._now.trail.pop(0))

    def _go_back(self, words: list[str]) -> None:
        count, seat = _number(words, 1), self._now
        if not seat.trail:
            advice = "no earlier one is kept" if self._keeps_states else "start with belljar shell --branch"
            raise CallerError(f"there is no state to go back to; {advice}")
        for _ in range(min(count, len(seat.trail))):
            self._close_state(seat.state)
            seat.state = seat.trail.pop()
        self._screen.note(f"before cell {seat.state.next_cell} again")

    def _branch(self, words: list[str]) -> None:
        for _ in range(_number(words, 1)):
            seat = self._take_seat(self._loop.do(self._now.live.branch(reseed=True)), self._now)
            self._screen.note(
                f"session {seat.number} is a branch of {self._now.number}; go there with :switch {seat.number}"
            )

    def _switch(self, words: list[str]) -> None:
        self._now = self._find(_number(words, 0))

    def _close(self, words: list[str]) -> None:
        seat = self._find(_number(words, self._now.number))
        while seat.trail:
            self._close_state(seat.trail.pop())
        self._close_state(seat.state)
        if seat is self._now:
            self._replace()
        else:
            del self._seats[seat.number]

    def _close_state(self, state: _State) -> None:
        if state.is_ours:
            with contextlib.suppress(NotFound):
                self._loop.do(state.live.close())

    def _find(self, number: int) -> _Seat:
        if number not in self._seats:
            raise CallerError(f"there is no session {number} in this shell; :sessions lists them")
        return self._seats[number]

    def _list(self, _words: list[str]) -> None:
        rows = []
        for seat in self._seats.values():
            try:
                state = self._loop.do(seat.live.state())
                facts = [str(state.cells), f"{state.memory_bytes / MIB:.1f}"]
            except NotFound as error:
                facts = [error.message, ""]
            mark = "→" if seat is self._now else ""
            rows.append([f"{mark}{seat.number}", seat.live.id, str(seat.parent or "–"), *facts])
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
        self._loop.do(self._now.live.upload(path, content))
        self._screen.note(f"{len(content):,} bytes are now in {path}")

    def _download(self, words: list[str]) -> None:
        path, local = _names(words, ":download PATH [FILE]")
        target = Path(local or Path(path).name).expanduser()
        content = self._loop.do(self._now.live.download(path))
        save_artifacts.save(target.parent, [File(path=target.name, content=content)], replace=False)
        self._screen.note(f"{len(content):,} bytes are now in {target}")

    def _list_files(self, _words: list[str]) -> None:
        for each in self._loop.do(self._now.live.files()):
            print(f"{each.size_bytes:>12,}  {terminal.printable(each.path)}")

    # ---- the rest

    def _set_timeout(self, words: list[str]) -> None:
        try:
            self._timeout = float(words[0]) if words else None
        except ValueError:
            raise CallerError(f"{words[0]!r} is no number; write :timeout SECONDS") from None

    def _obey(self, line: str) -> None:
        try:
            name, *words = shlex.split(line[1:])
            command = self.commands.get(name)
            if command is None:
                raise CallerError(f"there is no command :{name}; :help lists them")
            command(words)
        except (BelljarError, ValueError) as error:
            self._screen.note(str(error))
            self._has_failed = True
        except KeyboardInterrupt:
            print()


_TRAIL_MAX = 8  # states kept by --branch


def _number(words: list[str], default: int) -> int:
    if not words:
        return default
    if not (words[0].isascii() and words[0].isdigit()):
        raise CallerError(f"{words[0]!r} is no number")
    return int(words[0])


def _names(words: list[str], usage: str) -> tuple[str, str]:
    if not 1 <= len(words) <= 2:
        raise CallerError(f"write {usage}")
    return words[0], words[1] if len(words) == 2 else ""


async def _next(events: AsyncGenerator[Event, None]) -> Event | None:
    return await anext(events, None)


async def _end(events: AsyncGenerator[Event, None]) -> None:
    await events.aclose()


async def _suppressing(live: Live) -> None:
    """Interrupt; the cell may be over by now, and its session gone."""
    with contextlib.suppress(BelljarError):
        await live.interrupt()
