"""What callers may ask for: the fields of a program, a session and a cell, each with its default.

Nothing here is checked: `engine/admission` does that, and makes an Execution or a SessionOrder of a request. It takes
any object that has the fields:

- `ExecutionRequest`, `SessionRequest` and `CellRequest`, which Python code builds from keywords;
- classes that a front end decodes from its wire format, derived from `ExecutionFields` and so on. They declare the
  fields that the wire has, in the types of the wire; every other field has the default below.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict, Unpack

from belljar.contract.execution import Coverage, Limits
from belljar.contract.files import File
from belljar.contract.restriction import Restriction


class NestedObject:
    """A nested object of a request, as a front end decoded it."""

    __slots__ = ()

    def given(self) -> dict[str, Any]:
        """Return the fields that the caller set, by their names on the wire."""
        raise NotImplementedError


class InlineFile:
    """A file in a request, whose content may still be encoded."""

    __slots__ = ()

    def as_file(self, field: str) -> File:
        """Decode the content. Raises InvalidExecution, which names `field`, if it is not encoded as declared."""
        raise NotImplementedError


class CommonFields:
    """What programs and sessions have in common."""

    __slots__ = ()

    language: str = "python"  # a name or an alias that the server lists
    environment: str = "default"
    env: Mapping[str, str] | None = None
    files: Mapping[str, str | bytes] | Iterable[File | InlineFile] | None = None  # put into the work directory
    limits: Limits | Mapping[str, float] | NestedObject | None = None  # names of LIMIT_UNITS over the server's defaults
    timeout: float | None = None  # short for limits.wall_seconds
    memory_mb: float | None = None  # short for limits.memory_mb
    network: bool = False
    tools: bool | Sequence[str] = False  # names of host functions, or True for all


class ExecutionFields(CommonFields):
    """One program: its code, its input and what to return."""

    __slots__ = ()

    code: str
    stdin: str | bytes = b""
    args: Sequence[str] = ()
    artifacts: Sequence[str] = ()  # globs of the files to return
    coverage: bool | Coverage | Mapping[str, bool] | NestedObject | None = None
    restrict: Restriction | Mapping[str, Any] | NestedObject | None = None  # what is left out is the server's default


class SessionFields(CommonFields):
    """A session. Memory, disk and processes are for its whole life, times for each of its cells."""

    __slots__ = ()

    id: str = ""  # empty: the server chooses one that cannot be guessed
    idle_seconds: float | None = None  # how long it is kept unused


class CellFields:
    """One cell of a session, which has the session's limits unless it names its own times and output."""

    __slots__ = ()

    code: str
    timeout: float | None = None
    limits: Mapping[str, float] | NestedObject | None = None
    artifacts: Sequence[str] = ()


class CommonKeywords(TypedDict, total=False):
    """The keywords that `Sandbox` and `Client` share with `CommonFields`; each adds `files` and `tools` of its own."""

    language: str
    environment: str
    env: Mapping[str, str] | None
    limits: Limits | Mapping[str, float] | None
    timeout: float | None
    memory_mb: float | None
    network: bool


class ProgramKeywords(CommonKeywords, total=False):
    """The keywords of a program."""

    stdin: str | bytes
    args: Sequence[str]
    artifacts: Sequence[str]
    coverage: bool | Coverage | Mapping[str, bool] | None
    restrict: Restriction | Mapping[str, Any] | None


class SessionKeywords(CommonKeywords, total=False):
    """The keywords of a session."""

    id: str
    idle_seconds: float | None


class CellKeywords(TypedDict, total=False):
    """The keywords of a cell."""

    timeout: float | None
    limits: Mapping[str, float] | None
    artifacts: Sequence[str]


class CellOptions(CellKeywords, total=False):
    """The keywords of a cell in a `Sandbox` or a `Client`."""

    wait: bool  # False: SessionBusy at once when another cell runs
    waits: bool  # the same


class _ExecutionKeywords(ProgramKeywords, total=False):
    files: Mapping[str, str | bytes] | Iterable[File] | None
    tools: bool | Sequence[str]


class _SessionKeywords(SessionKeywords, total=False):
    files: Mapping[str, str | bytes] | Iterable[File] | None
    tools: bool | Sequence[str]


class ExecutionRequest(ExecutionFields):
    """A program that Python code describes by keywords."""

    def __init__(self, code: str, **fields: Unpack[_ExecutionKeywords]) -> None:
        self.code = code
        _fill(self, fields)


class SessionRequest(SessionFields):
    """A session that Python code describes by keywords."""

    def __init__(self, **fields: Unpack[_SessionKeywords]) -> None:
        _fill(self, fields)


class CellRequest(CellFields):
    """A cell that Python code describes by keywords."""

    def __init__(self, code: str, **fields: Unpack[CellKeywords]) -> None:
        self.code = code
        _fill(self, fields)


def _fill(request: object, fields: Mapping[str, object]) -> None:
    for name, value in fields.items():
        if not hasattr(type(request), name):
            raise TypeError(f"{type(request).__name__}() got an unexpected keyword argument {name!r}")
        setattr(request, name, value)
