"""Types of answers that only a server gives: batches, languages, environments, information, health."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from belljar.contract.errors import BelljarError
from belljar.contract.execution import Limits, Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One program or case of a batch: its outcome, or why it has none."""

    outcome: Outcome | None
    #: For a case: "passed", "wrong_answer", "skipped" or a status; for any program: "not_run" or "not_kept".
    verdict: str | None = None
    error: BelljarError | None = None

    @property
    def passed(self) -> bool:
        """Whether the output was correct or, without an expected output, the program succeeded."""
        if self.verdict is not None:
            return self.verdict == "passed"
        return self.outcome is not None and self.outcome.ok


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The results of a batch, in the order of the request."""

    results: tuple[Result, ...]
    passed: int
    failed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Language:
    """A language that the server knows, and how to install it if it is not available."""

    name: str
    title: str
    aliases: tuple[str, ...]
    available: bool
    version: str | None = None
    install: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """A guest environment: its Python version and its packages, as versions by name."""

    name: str
    python: str
    packages: Mapping[str, str]
    warm: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Wall:
    """One isolation layer: "on", "off" or "missing"."""

    state: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """The version, isolation layers and limits of a server."""

    version: str
    backend: str
    isolation: Mapping[str, Wall]
    default_limits: Limits
    ceiling_limits: Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """Whether the server can run a program now."""

    ok: bool
    status: str
    details: Mapping[str, Any] = field(default_factory=dict)
