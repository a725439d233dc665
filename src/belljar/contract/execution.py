"""One execution: what is asked (Execution), observed (Evidence) and answered (Outcome)."""

from __future__ import annotations

import base64
import enum
import signal as signals
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from belljar.contract.files import File

MIB = 1024 * 1024


class Status(enum.StrEnum):
    """The one word a caller reads."""

    OK = "ok"
    FAILED = "failed"
    CRASHED = "crashed"
    TIMED_OUT = "timed_out"
    OUT_OF_MEMORY = "out_of_memory"
    OUTPUT_LIMIT = "output_limit"
    DENIED = "denied"
    COMPILE_FAILED = "compile_failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one execution may use, all its processes together."""

    wall_seconds: float = 10.0
    cpu_seconds: float = 10.0
    memory_bytes: int = 512 * MIB
    output_bytes: int = MIB  # of each stream; what is past it is drained and dropped
    disk_bytes: int = 256 * MIB  # work directory, /tmp and /dev/shm, each
    processes: int = 64  # threads included


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """A program and what it is given. Validated by whoever builds it: see `engine/admission.py`."""

    code: str
    language: str = "python"
    stdin: bytes = b""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    files: tuple[File, ...] = ()
    artifacts: tuple[str, ...] = ()  # globs over the work directory
    limits: Limits = field(default_factory=Limits)
    environment: str = "default"
    caller: str = ""  # whose turn it takes in the queue


@dataclass(frozen=True, slots=True, kw_only=True)
class Display:
    """A picture or other rich output. Hostile payload: only its size and its type's name were checked."""

    mime: str
    content: bytes

    def as_json(self) -> dict[str, Any]:
        """The wire form: binary types in base64, text as text."""
        if self.mime.startswith("text/") or self.mime in ("application/json", "image/svg+xml"):
            return {"mime": self.mime, "data": self.content.decode("utf-8", "replace")}
        return {"mime": self.mime, "data": base64.b64encode(self.content).decode("ascii")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Facts a back end observed from outside. Back ends report facts; they never judge."""

    exit_code: int | None = None
    signal: int | None = None
    deadline_passed: bool = False
    cpu_exhausted: bool = False
    cancelled: bool = False
    oom_kills: int = 0
    output_flooded: bool = False
    stdout: bytes = b""
    stderr: bytes = b""
    stdout_cut: bool = False
    stderr_cut: bool = False
    displays: tuple[Display, ...] = ()
    artifacts: tuple[File, ...] = ()
    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0
    memory_peak_bytes: int = 0


def classify(seen: Evidence) -> Status:
    """Turn observed facts into the one word the caller reads.

    Order matters: a program killed for memory or time also shows SIGKILL, so causes are asked about before
    symptoms; and a caller who gave up must not read a cause that only his giving up produced.
    """
    if seen.cancelled:
        return Status.CANCELLED
    if seen.oom_kills:
        return Status.OUT_OF_MEMORY
    if seen.deadline_passed or seen.cpu_exhausted or seen.signal == signals.SIGXCPU:
        return Status.TIMED_OUT
    if seen.output_flooded:
        return Status.OUTPUT_LIMIT
    if seen.signal == signals.SIGSYS:
        return Status.DENIED
    if seen.signal is not None:
        return Status.CRASHED
    return Status.OK if seen.exit_code == 0 else Status.FAILED


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramError:
    """The uncaught exception of a Python program, as read from its own standard error."""

    type: str
    message: str
    traceback: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What an execution took."""

    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0
    memory_peak_bytes: int = 0
    queue_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The answer to one execution."""

    id: str
    language: str
    status: Status
    exit_code: int | None
    signal: str | None
    stdout: str
    stderr: str
    stdout_cut: bool
    stderr_cut: bool
    error: ProgramError | None
    displays: tuple[Display, ...]
    artifacts: tuple[File, ...]
    usage: Usage

    @property
    def ok(self) -> bool:
        """Whether the program ran to its end and exited with 0."""
        return self.status is Status.OK

    def as_json(self) -> dict[str, Any]:
        """The 200 body of POST /v1/execute."""
        return {
            "id": self.id,
            "language": self.language,
            "status": str(self.status),
            "exit_code": self.exit_code,
            "signal": self.signal,
            "stdout": self.stdout,
            "stderr": self.stderr,
            "truncated": {"stdout": self.stdout_cut, "stderr": self.stderr_cut},
            "error": None
            if self.error is None
            else {"type": self.error.type, "message": self.error.message, "traceback": list(self.error.traceback)},
            "displays": [display.as_json() for display in self.displays],
            "artifacts": [
                {
                    "path": file.path,
                    "bytes": len(file.content),
                    "encoding": "base64",
                    "content": base64.b64encode(file.content).decode("ascii"),
                }
                for file in self.artifacts
            ],
            "compile": None,
            "tool_calls": [],
            "coverage": None,
            "usage": {
                "wall_seconds": round(self.usage.wall_seconds, 6),
                "cpu_seconds": round(self.usage.cpu_seconds, 6),
                "memory_peak_bytes": self.usage.memory_peak_bytes,
                "queue_seconds": round(self.usage.queue_seconds, 6),
            },
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """First event of a stream: the program has its place and runs."""

    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """Some text the program wrote, as soon as it was written."""

    stream: str  # "stdout" or "stderr"
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """Last event of a stream."""

    outcome: Outcome


Event = Started | Output | Display | Finished
