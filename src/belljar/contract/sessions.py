"""Sessions, which are interpreters that stay: the checked request, a back end's interface, and the shown state."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from belljar.contract.execution import Evidence, Execution, Limits
from belljar.contract.files import File

if TYPE_CHECKING:
    from belljar.contract.backend import Watcher


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOrder:
    """A session to be opened, checked by `engine/admission/request.py`."""

    id: str = ""  # empty: the engine chooses one that cannot be guessed
    language: str = "python"
    environment: str = "default"
    limits: Limits = field(default_factory=Limits)  # memory, disk and processes for its whole life; times per cell
    idle_seconds: float = 600.0
    env: Mapping[str, str] = field(default_factory=dict)
    network: bool = False
    tools: tuple[str, ...] = ()
    files: tuple[File, ...] = ()
    caller: str = ""  # its owner: no other caller may use it


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkFile:
    """A file in the work directory of a session."""

    path: str
    size_bytes: int
    modified_at: float  # seconds since 1970


class LiveSession(Protocol):
    """One session of a back end. It runs one cell at a time: the engine sees to that."""

    @property
    def ended(self) -> str | None:
        """Why it has ended: "memory", "exit", "crash", "timeout", "closed", "lost"; None while it lives."""

    def on_end(self, notify: Any) -> None:
        """Call `notify()` once it has ended, whatever the reason."""

    async def run(self, cell: Execution, watcher: Watcher | None = None) -> Evidence:
        """Run one cell to its end. Cancelling interrupts it, and ends the session if it will not be interrupted."""

    def interrupt(self) -> None:
        """Raise KeyboardInterrupt in the running cell, if one runs."""

    async def branch(self, reseed: bool = True) -> LiveSession:
        """An independent copy of the live state. Raises CannotBranch with the reason."""

    def memory_bytes(self) -> int:
        """How much memory it uses now."""

    async def write_file(self, path: str, content: bytes) -> None:
        """Make or replace a file in the work directory. Raises UnsafePath, TooLarge."""

    async def read_file(self, path: str) -> bytes:
        """The content of a file in the work directory. Raises FileNotInSession, UnsafePath, TooLarge."""

    async def delete_file(self, path: str) -> None:
        """Remove a file from the work directory. Raises FileNotInSession, UnsafePath."""

    async def list_files(self) -> Sequence[WorkFile]:
        """Regular files of the work directory, at any depth, in order of their paths."""

    async def close(self) -> None:
        """End it and everything it started; nothing is left when this returns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionState:
    """What callers see of a session."""

    id: str
    language: str
    environment: str
    is_busy: bool
    cells: int
    memory_bytes: int
    created_at: float  # seconds since 1970, as all times here
    last_used_at: float
    expires_at: float
    parent: str | None
    limits: Limits

    def as_json(self) -> dict[str, Any]:
        """The wire form of the native API."""
        return {
            "id": self.id,
            "language": self.language,
            "environment": self.environment,
            "state": "busy" if self.is_busy else "idle",
            "cells": self.cells,
            "memory_bytes": self.memory_bytes,
            "created_at": rfc3339(self.created_at),
            "last_used_at": rfc3339(self.last_used_at),
            "expires_at": rfc3339(self.expires_at),
            "parent": self.parent,
            "limits": self.limits.as_json(),
        }


def rfc3339(seconds: float) -> str:
    """A time as the API writes it."""
    return (
        datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    )
