"""What only a server can tell, typed: verdicts, languages, environments, itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from belljar.contract.errors import BelljarError
from belljar.contract.execution import Limits, Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One program or case of a batch: its outcome, or why there is none."""

    outcome: Outcome | None
    #: Of a case: "passed", "wrong_answer", "skipped" or the word of a status; of any: "not_run" or "not_kept".
    verdict: str | None = None
    error: BelljarError | None = None

    @property
    def passed(self) -> bool:
        """Whether the case was answered rightly, or the program without expectations ended well."""
        if self.verdict is not None:
            return self.verdict == "passed"
        return self.outcome is not None and self.outcome.ok


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The answer to a batch, in the order of the request."""

    results: tuple[Result, ...]
    passed: int
    failed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Language:
    """A language the server knows, and what it takes to have it there."""

    name: str
    title: str
    aliases: tuple[str, ...]
    available: bool
    version: str | None
    install: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """A guest environment: its Python and what is installed in it, versions by package."""

    name: str
    python: str
    packages: Mapping[str, str]
    warm: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Wall:
    """One wall of the jail: "on", "off" or "missing"."""

    state: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """What a server is and gives."""

    version: str
    backend: str
    isolation: Mapping[str, Wall]
    default_limits: Limits
    ceiling_limits: Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """Whether a program could be run right now."""

    ok: bool
    status: str
    details: Mapping[str, Any] = field(default_factory=dict)
