"""The interfaces between the engine and the back ends that run programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from belljar.contract.execution import Display, Evidence, Execution, Outcome, ToolAnswered, ToolCalled
from belljar.contract.sessions import LiveSession, SessionOrder


class Watcher(Protocol):
    """Notified of what a program does while it runs. Must not block."""

    def started(self) -> None:
        """The program was sent to its jail."""

    def wrote(self, stream: str, chunk: bytes) -> None:
        """`stream` is 'stdout' or 'stderr'; chunks past the output limit are not passed on."""

    def displayed(self, display: Display) -> None:
        """The program has shown a picture or another display."""

    def called(self, call: ToolCalled) -> None:
        """The program has called a tool."""

    def answered(self, answer: ToolAnswered) -> None:
        """The tool has answered."""

    @property
    def is_behind(self) -> bool:
        """Whether the client has too much unread output; reading then pauses and the program blocks on its pipe."""

    async def caught_up(self) -> None:
        """Return once `is_behind` is false again."""


class Sandbox(Protocol):
    """Runs programs. Cancelling `run` ends the program and everything it started before it returns."""

    name: str

    async def open(self) -> None:
        """Get ready to run programs. Raises SandboxFault if that fails."""

    async def run(self, execution: Execution, watcher: Watcher | None = None) -> Evidence:
        """Run one program to its end and report what was seen. Raises SandboxFault if it could not be run."""

    async def open_session(self, order: SessionOrder) -> LiveSession:
        """Start an interpreter that stays. Raises NotOffered if this sandbox has none for that language."""

    async def close(self) -> None:
        """End everything, sessions too, and leave nothing behind."""

    def facts(self) -> Mapping[str, Any]:
        """Numbers for monitoring: ready guests, running programs, replaced zygotes."""


class Observer(Protocol):
    """Counts and logs what the engine does. Called on the event loop; must not block."""

    def executed(self, execution: Execution, outcome: Outcome) -> None:
        """An execution has its outcome."""

    def ran_cell(self, session_id: str, cell: Execution, outcome: Outcome) -> None:
        """A cell of a session has its outcome."""

    def ended(self, session_id: str, reason: str, cells: int) -> None:
        """A session has ended after so many cells."""
