"""The JSON of every answer of the native API, as types; `/openapi.json` is generated from them.

Optional keys are in a base class of their own: `NotRequired` is not seen where annotations are strings.
"""

from __future__ import annotations

from typing import Any, Literal, TypedDict

from belljar.contract.execution import Status


class NetworkUse(TypedDict):
    """What went through the network of a program that had one."""

    connections: int
    refused: int
    sent_bytes: int
    received_bytes: int


class _UsageOptions(TypedDict, total=False):
    network: NetworkUse


class Usage(_UsageOptions):
    """The time and memory that an execution took."""

    wall_seconds: float
    cpu_seconds: float
    memory_peak_bytes: int
    queue_seconds: float


class _DisplayOptions(TypedDict, total=False):
    bundle: int
    result: bool


class Display(_DisplayOptions):
    """A picture or other rich output; binary types in base64, text as text."""

    mime: str
    data: str


class Artifact(TypedDict):
    """A file of the work directory that the request named."""

    path: str
    bytes: int
    encoding: Literal["base64"]
    content: str


class _FileCoverageOptions(TypedDict, total=False):
    missing_branches: list[list[int]]


class FileCoverage(_FileCoverageOptions):
    """Which lines of one file ran."""

    path: str
    percent: float
    executed: list[int]
    missing: list[int]


class CoverageReport(TypedDict):
    """Which lines of the program's own files ran."""

    percent: float
    files: list[FileCoverage]


class ProgramError(TypedDict):
    """The uncaught exception of a Python program."""

    type: str
    message: str
    traceback: list[str]


class Truncated(TypedDict):
    """Which streams were cut at the output limit."""

    stdout: bool
    stderr: bool


class Compilation(TypedDict):
    """How the compile step went."""

    status: Status
    exit_code: int | None
    stdout: str
    stderr: str
    wall_seconds: float
    cached: bool


class ToolCall(TypedDict):
    """One call of a host function."""

    tool: str
    ok: bool
    seconds: float


class Outcome(TypedDict):
    """The answer to one execution."""

    id: str
    language: str
    status: Status
    exit_code: int | None
    signal: str | None
    stdout: str
    stderr: str
    truncated: Truncated
    error: ProgramError | None
    displays: list[Display]
    artifacts: list[Artifact]
    compile: Compilation | None
    tool_calls: list[ToolCall]
    coverage: CoverageReport | None
    usage: Usage


class CellOutcome(Outcome):
    """The answer to one cell of a session."""

    cell: int


class Event(TypedDict):
    """A line of a stream; the other fields depend on the event."""

    event: str


class ErrorDetails(TypedDict):
    """What went wrong; `code` never changes, `message` may."""

    code: str
    message: str
    details: dict[str, Any]


class Error(TypedDict):
    """The answer to a request that could not be served."""

    error: ErrorDetails


class _JudgedOptions(TypedDict, total=False):
    verdict: str


class JudgedOutcome(Outcome, _JudgedOptions):
    """An outcome, with the verdict of a case."""


class _NotRunOptions(TypedDict, total=False):
    verdict: Literal["not_run", "not_kept"]


class NotRun(Error, _NotRunOptions):
    """The error of an execution that could not be run, or whose outcome could not be kept."""


class Result(TypedDict):
    """One result of a batch: a JudgedOutcome, or NotRun."""


class Results(TypedDict):
    """The answer to a batch."""

    results: list[Result]
    passed: int
    failed: int


class Limits(TypedDict):
    """What one execution may use."""

    wall_seconds: float
    cpu_seconds: float
    memory_mb: float
    output_kb: float
    disk_mb: float
    processes: float


class Session(TypedDict):
    """A session as its owner sees it."""

    id: str
    language: str
    environment: str
    state: Literal["idle", "busy"]
    cells: int
    memory_bytes: int
    created_at: str
    last_used_at: str
    expires_at: str
    parent: str | None
    limits: Limits


class Sessions(TypedDict):
    """Some sessions of one key."""

    sessions: list[Session]


class Interrupted(TypedDict):
    """Whether a cell ran when the request came."""

    interrupted: bool


class WorkFile(TypedDict):
    """A file in the work directory of a session."""

    path: str
    bytes: int
    modified_at: str


class WorkFiles(TypedDict):
    """The files of a session."""

    files: list[WorkFile]


class Language(TypedDict):
    """A language; `install` says how to get one that is not available."""

    name: str
    title: str
    aliases: list[str]
    available: bool
    version: str | None
    install: str | None


class Languages(TypedDict):
    """The languages that the server knows."""

    languages: list[Language]


class Package(TypedDict):
    """A package that an environment has."""

    name: str
    version: str


class Environment(TypedDict):
    """A guest environment; `warm` ones have their packages imported before a program starts."""

    name: str
    python: str
    packages: list[Package]
    warm: bool


class Environments(TypedDict):
    """The guest environments of this server."""

    environments: list[Environment]


class IsolationLayer(TypedDict):
    """The state of one isolation layer."""

    state: Literal["on", "off", "missing"]
    detail: str


class LimitRange(TypedDict):
    """The limits of a request that names none, and the most that one may name."""

    default: Limits
    ceiling: Limits


class Info(TypedDict):
    """Version, isolation layers and limits of this server."""

    version: str
    backend: str
    isolation: dict[str, IsolationLayer]
    limits: LimitRange


class Health(TypedDict):
    """Programs can be run now."""

    status: Literal["ok"]
    version: str
    running: int
    queued: int


class Home(TypedDict):
    """What the server is, and where its documentation is."""

    name: str
    message: str
    version: str
    docs: str
