"""One execution: the checked request (Execution), the observed facts (Evidence) and the answer (Outcome)."""

from __future__ import annotations

import base64
import enum
import signal as signals
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from belljar.contract.fast_init import fast_frozen
from belljar.contract.files import File
from belljar.contract.restriction import Restriction

MIB = 1024 * 1024
_SIGXCPU, _SIGSYS = int(signals.SIGXCPU), int(signals.SIGSYS)


class Status(enum.StrEnum):
    """How an execution ended, in one word."""

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
    output_bytes: int = MIB  # of each stream; the rest is read and dropped
    disk_bytes: int = 256 * MIB  # work directory, /tmp and /dev/shm, each
    processes: int = 64  # threads included

    def as_json(self) -> dict[str, float]:
        """By the names and units of the native API."""
        return {name: unit.show(getattr(self, unit.field)) for name, unit in LIMIT_UNITS.items()}

    @classmethod
    def from_json(cls, limits: Mapping[str, float]) -> Limits:
        """The opposite of `as_json`. Raises KeyError if one is missing."""
        return cls(**{unit.field: unit.read(limits[name]) for name, unit in LIMIT_UNITS.items()})


class LimitUnit(NamedTuple):
    """How callers count one limit."""

    field: str  # of Limits
    factor: int  # how many of the field's units one of the caller's is
    word: str

    def show(self, amount: float) -> float:
        """The amount of the field in the caller's unit, without a fraction if it has none."""
        if self.factor == 1:
            return amount
        number = amount / self.factor
        return int(number) if number == int(number) else number

    def read(self, number: float) -> Any:
        """A number in the caller's unit as the field holds it: seconds with a fraction, all else whole."""
        return float(number) if self.word == "seconds" else int(number * self.factor)


#: Every limit by the name that callers use, in requests and in answers.
LIMIT_UNITS: Mapping[str, LimitUnit] = {
    "wall_seconds": LimitUnit("wall_seconds", 1, "seconds"),
    "cpu_seconds": LimitUnit("cpu_seconds", 1, "seconds"),
    "memory_mb": LimitUnit("memory_bytes", MIB, "MiB"),
    "output_kb": LimitUnit("output_bytes", 1024, "KiB"),
    "disk_mb": LimitUnit("disk_bytes", MIB, "MiB"),
    "processes": LimitUnit("processes", 1, "processes and threads"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Measure which lines ran, and with `branch` which branches were taken."""

    branch: bool = False


@fast_frozen
@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """A program and its input, checked by `engine/admission/request.py`."""

    code: str
    language: str = "python"
    stdin: bytes = b""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    files: tuple[File, ...] = ()
    artifacts: tuple[str, ...] = ()  # globs over the work directory
    limits: Limits = field(default_factory=Limits)
    compile_limits: Limits | None = None  # of a compile step; None: as the language's file says
    environment: str = "default"
    network: bool = False
    tools: tuple[str, ...] = ()  # names of host functions the program may call
    coverage: Coverage | None = None
    restrict: Restriction | None = None
    caller: str = ""  # for fairness in the queue


class Leaves(NamedTuple):
    """How the long parts of an answer are put into its wire form: at once, or later while it is sent."""

    text: Callable[[str], Any]
    utf8: Callable[[bytes], Any]
    base64: Callable[[bytes], Any]


_AT_ONCE = Leaves(
    text=lambda text: text,
    utf8=lambda content: content.decode("utf-8", "replace"),
    base64=lambda content: base64.b64encode(content).decode("ascii"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Display:
    """A picture or other rich output. Hostile payload: only its size and its type's name were checked."""

    mime: str
    content: bytes
    bundle: int | None = None  # displays of one cell with the same number are forms of the same thing
    is_result: bool = False  # the value of a cell's last expression

    @property
    def is_text(self) -> bool:
        """Whether its content is text in UTF-8."""
        known = ("application/json", "application/javascript", "image/svg+xml")
        return self.mime.startswith("text/") or self.mime in known or self.mime.endswith(("+json", "+xml"))

    def as_json(self, leaves: Leaves = _AT_ONCE) -> dict[str, Any]:
        """The wire form: binary types in base64, text as text."""
        known = {"mime": self.mime, "data": (leaves.utf8 if self.is_text else leaves.base64)(self.content)}
        return known if self.bundle is None else {**known, "bundle": self.bundle, "result": self.is_result}


@dataclass(frozen=True, slots=True, kw_only=True)
class Compilation:
    """How the compile step went; a program whose compile step fails is never run."""

    status: Status
    exit_code: int | None
    stdout: str
    stderr: str
    wall_seconds: float
    was_cached: bool = False

    def as_json(self, leaves: Leaves = _AT_ONCE) -> dict[str, Any]:
        return {
            "status": str(self.status),
            "exit_code": self.exit_code,
            "stdout": leaves.text(self.stdout),
            "stderr": leaves.text(self.stderr),
            "wall_seconds": round(self.wall_seconds, 6),
            "cached": self.was_cached,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One call of a host function, after it was answered."""

    tool: str
    ok: bool
    seconds: float

    def as_json(self) -> dict[str, Any]:
        return {"tool": self.tool, "ok": self.ok, "seconds": round(self.seconds, 6)}


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkUse:
    """What went through the network of a program that had one."""

    connections: int = 0
    refused: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0

    def as_json(self) -> dict[str, int]:
        return {
            "connections": self.connections,
            "refused": self.refused,
            "sent_bytes": self.sent_bytes,
            "received_bytes": self.received_bytes,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class FileCoverage:
    """Which lines of one file ran. Measured beside the program, so a hostile one can forge it."""

    path: str
    percent: float
    executed: tuple[int, ...]
    missing: tuple[int, ...]
    missing_branches: tuple[tuple[int, int], ...] | None = None  # from line, to line; None: not measured

    def as_json(self) -> dict[str, Any]:
        tree = {
            "path": self.path,
            "percent": self.percent,
            "executed": list(self.executed),
            "missing": list(self.missing),
        }
        return tree if self.missing_branches is None else {**tree, "missing_branches": list(self.missing_branches)}


@dataclass(frozen=True, slots=True, kw_only=True)
class CoverageReport:
    """Which lines of the program's own files ran."""

    percent: float
    files: tuple[FileCoverage, ...]

    def as_json(self) -> dict[str, Any]:
        return {"percent": self.percent, "files": [each.as_json() for each in self.files]}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramError:
    """The uncaught exception of a Python program, read from its standard error or reported by its cell: untrusted."""

    type: str
    message: str
    traceback: tuple[str, ...]


@fast_frozen
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
    error: ProgramError | None = None  # as the cell reported it: untrusted, bounded
    refused: bool = False  # by the `restrict` policy, before or while it ran
    compilation: Compilation | None = None
    stdout: bytes = b""
    stderr: bytes = b""
    stdout_cut: bool = False
    stderr_cut: bool = False
    stderr_tail: bytes = b""  # the end of what was cut off
    displays: tuple[Display, ...] = ()
    artifacts: tuple[File, ...] = ()
    note: str = ""  # appended to its standard error
    tool_calls: tuple[ToolCall, ...] = ()
    coverage: CoverageReport | None = None
    network: NetworkUse | None = None  # None: it had none
    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0
    memory_peak_bytes: int = 0


def cut_note(limits: Limits) -> str:
    """The last line of a text that was cut, for answers without a field that says so."""
    return f"[cut: output after the first {limits.output_bytes / 1024:g} KB was dropped]"


def classify(seen: Evidence) -> Status:
    """Turn observed facts into a status.

    Order matters: a program killed for memory or time also shows SIGKILL, so causes come before symptoms; and a
    cancelled program must not show a cause that only the cancellation produced.
    """
    if seen.cancelled:
        return Status.CANCELLED
    if seen.compilation is not None and seen.compilation.status is not Status.OK:
        return Status.COMPILE_FAILED
    if seen.oom_kills:
        return Status.OUT_OF_MEMORY
    if seen.deadline_passed or seen.cpu_exhausted or seen.signal == _SIGXCPU:
        return Status.TIMED_OUT
    if seen.output_flooded:
        return Status.OUTPUT_LIMIT
    if seen.refused or seen.signal == _SIGSYS:
        return Status.DENIED
    if seen.signal is not None:
        return Status.CRASHED
    return Status.OK if seen.exit_code == 0 and seen.error is None else Status.FAILED


@fast_frozen
@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What an execution took; seconds are whole microseconds."""

    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0
    memory_peak_bytes: int = 0
    queue_seconds: float = 0.0
    network: NetworkUse | None = None  # None: it had none


@fast_frozen
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
    compilation: Compilation | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    coverage: CoverageReport | None = None
    cell: int | None = None  # its number in a session; None: not in one

    @property
    def ok(self) -> bool:
        """Whether the program ran to its end and exited with 0."""
        return self.status is Status.OK

    @property
    def value(self) -> str | None:
        """The value of a cell's last expression, as text; None if it has none."""
        texts = (each.content for each in self.displays if each.is_result and each.mime == "text/plain")
        return next((text.decode("utf-8", "replace") for text in texts), None)

    @property
    def size_bytes(self) -> int:
        """How much memory its output, displays and files take, roughly."""
        size = len(self.stdout) + len(self.stderr)
        for display in self.displays:
            size += len(display.content)
        for file in self.artifacts:
            size += len(file.content)
        if self.compilation is not None:
            size += len(self.compilation.stdout) + len(self.compilation.stderr)
        return size

    def as_json(self, leaves: Leaves = _AT_ONCE) -> dict[str, Any]:
        """The 200 body of POST /v1/execute."""
        return {
            "id": self.id,
            **({} if self.cell is None else {"cell": self.cell}),
            "language": self.language,
            "status": str(self.status),
            "exit_code": self.exit_code,
            "signal": self.signal,
            "stdout": leaves.text(self.stdout),
            "stderr": leaves.text(self.stderr),
            "truncated": {"stdout": self.stdout_cut, "stderr": self.stderr_cut},
            "error": None
            if self.error is None
            else {"type": self.error.type, "message": self.error.message, "traceback": list(self.error.traceback)},
            "displays": [display.as_json(leaves) for display in self.displays],
            "artifacts": [
                {
                    "path": file.path,
                    "bytes": len(file.content),
                    "encoding": "base64",
                    "content": leaves.base64(file.content),
                }
                for file in self.artifacts
            ],
            "compile": None if self.compilation is None else self.compilation.as_json(leaves),
            "tool_calls": [call.as_json() for call in self.tool_calls],
            "coverage": None if self.coverage is None else self.coverage.as_json(),
            "usage": {
                "wall_seconds": self.usage.wall_seconds,
                "cpu_seconds": self.usage.cpu_seconds,
                "memory_peak_bytes": self.usage.memory_peak_bytes,
                "queue_seconds": self.usage.queue_seconds,
                **({} if self.usage.network is None else {"network": self.usage.network.as_json()}),
            },
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """First event of a stream: the program runs."""

    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """Some text, as soon as the program has written it."""

    stream: str  # "stdout" or "stderr"
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCalled:
    """The program has called a host function."""

    number: int  # of the call, within its execution
    tool: str
    arguments: Mapping[str, Any]
    size_bytes: int = field(default=0, compare=False)  # in memory, roughly


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolAnswered:
    """A host function has returned, or failed."""

    number: int
    call: ToolCall
    result: Any  # a JSON value, or the message of the failure
    size_bytes: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """Last event of a stream."""

    outcome: Outcome


Event = Started | Output | Display | ToolCalled | ToolAnswered | Finished


def describe(event: Event, leaves: Leaves = _AT_ONCE) -> dict[str, Any]:
    """An event as a line of a stream; the last line leaves out what earlier ones contained."""
    if isinstance(event, Output):
        return {"event": event.stream, "text": leaves.text(event.text)}
    if isinstance(event, Started):
        return {"event": "started", "id": event.id}
    if isinstance(event, Display):
        return {"event": "display", **event.as_json(leaves)}
    if isinstance(event, ToolCalled):
        return {"event": "tool_call", "number": event.number, "tool": event.tool, "arguments": dict(event.arguments)}
    if isinstance(event, ToolAnswered):
        return {"event": "tool_result", "number": event.number, **event.call.as_json(), "result": event.result}
    sent = ("stdout", "stderr", "displays")
    rest = {name: value for name, value in event.outcome.as_json(leaves).items() if name not in sent}
    return {"event": "finished", **rest}
