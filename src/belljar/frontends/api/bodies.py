"""The bodies of requests: typed, strict, and decoded straight from bytes.

Only the form is checked here: names, types, nothing unknown. `engine/admission` checks the values, for every front end
alike. A body is a request of `contract/request.py` in the types of JSON, so admission takes it as it is.
"""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Any, Generic, Literal, TypeVar, get_type_hints

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from belljar.contract.errors import InvalidExecution, NotAllowed
from belljar.contract.execution import Execution
from belljar.contract.files import File
from belljar.contract.request import CellFields, ExecutionFields, InlineFile, NestedObject, SessionFields
from belljar.contract.sessions import SessionOrder
from belljar.engine.admission.request import admit, admit_session
from belljar.frontends.access.callers import Caller
from belljar.frontends.api.body_errors import explain

_T = TypeVar("_T")

_BASE64_SLICE = 512 * 1024  # characters, a multiple of 4

Positive = Annotated[float, Meta(gt=0)]


class _NestedBody(Struct, NestedObject, forbid_unknown_fields=True):
    def given(self) -> dict[str, Any]:
        """Null is as good as left out."""
        values = ((name, getattr(self, name)) for name in self.__struct_fields__)
        return {name: value for name, value in values if value is not None}


class LimitsBody(_NestedBody, omit_defaults=True):
    """What one execution may use; what is left out is the server's default."""

    wall_seconds: Positive | None = None
    cpu_seconds: Positive | None = None
    memory_mb: Positive | None = None
    output_kb: Positive | None = None
    disk_mb: Positive | None = None
    processes: Annotated[int, Meta(gt=0)] | None = None


class FileBody(Struct, InlineFile, forbid_unknown_fields=True):
    """A file to put into the work directory."""

    path: str
    content: str = ""
    encoding: Literal["utf-8", "base64"] = "utf-8"

    def as_file(self, field: str) -> File:
        """Decode the content. That of a large one is UTF-8 already: see `large_bodies`.

        Raises:
            InvalidExecution: it is not base64.
        """
        content: str | bytes = self.content
        if self.encoding == "utf-8":
            return File(path=self.path, content=content if isinstance(content, bytes) else content.encode())
        try:
            return File(path=self.path, content=_decode_base64(content))
        except (binascii.Error, ValueError):
            field = f"{field}.content"
            raise InvalidExecution(f"{field} is not base64; encode it or use encoding 'utf-8'", field=field) from None


class CoverageBody(_NestedBody):
    """How to measure coverage."""

    branch: bool = False


class RestrictBody(_NestedBody):
    """What restricted Python may do; what is left out is the server's default."""

    imports: list[str] | None = None
    max_print_length: int | None = None


class ExecuteBody(Struct, ExecutionFields, forbid_unknown_fields=True):
    """The body of POST /v1/execute."""

    code: Annotated[str, Meta(min_length=1)]
    language: str = "python"
    stdin: str = ""
    args: list[str] = []
    env: dict[str, str] = {}
    files: list[FileBody] = []
    artifacts: list[str] = []
    limits: LimitsBody | None = None
    timeout: Positive | None = None
    environment: str = "default"
    network: bool = False
    tools: bool | list[str] = False
    coverage: bool | CoverageBody = False
    restrict: RestrictBody | None = None


class CaseBody(Struct, forbid_unknown_fields=True):
    """One case of a batch: its own input, and what should come out."""

    stdin: str | UnsetType = UNSET
    expected_stdout: str | None = None
    args: list[str] | UnsetType = UNSET


Comparison = Literal["exact", "trimmed", "tokens"]


def _optional(kind: type[Struct]) -> list[tuple[str, Any, Any]]:
    """The fields of a struct, each of which may be left out."""
    hints = get_type_hints(kind, include_extras=True)
    return [(name, hints[name] | UnsetType, UNSET) for name in kind.__struct_fields__]


#: The body of POST /v1/batch: `executions`, or a program with `cases`.
BatchBody = msgspec.defstruct(
    "BatchBody",
    [
        ("executions", list[ExecuteBody] | UnsetType, UNSET),
        *_optional(ExecuteBody),
        ("cases", list[CaseBody] | UnsetType, UNSET),
        ("compare", Comparison | UnsetType, UNSET),
        ("stop_on_failure", bool | UnsetType, UNSET),
    ],
    namespace={"__doc__": "The body of POST /v1/batch: `executions`, or a program with `cases`."},
    module=__name__,
    forbid_unknown_fields=True,
)


class SessionBody(Struct, SessionFields, forbid_unknown_fields=True):
    """The body of POST /v1/sessions."""

    id: Annotated[str, Meta(max_length=128)] = ""
    language: str = "python"
    environment: str = "default"
    limits: LimitsBody | None = None
    idle_seconds: Positive | None = None
    env: dict[str, str] = {}
    network: bool = False
    tools: bool | list[str] = False
    files: list[FileBody] = []


class CellLimitsBody(_NestedBody, omit_defaults=True):
    """What one cell may use; what is left out is the session's."""

    wall_seconds: Positive | None = None
    cpu_seconds: Positive | None = None
    output_kb: Positive | None = None


class CellBody(Struct, CellFields, forbid_unknown_fields=True):
    """The body of POST /v1/sessions/{id}/execute."""

    code: Annotated[str, Meta(min_length=1)]
    timeout: Positive | None = None
    limits: CellLimitsBody | None = None
    artifacts: list[str] = []
    wait: bool = True


class BranchBody(Struct, forbid_unknown_fields=True):
    """The body of POST /v1/sessions/{id}/branch."""

    count: Annotated[int, Meta(ge=1, le=64)] = 1
    reseed: bool = True


class BodyReader(Generic[_T]):
    """Decodes one kind of body."""

    def __init__(self, kind: type[_T]) -> None:
        self._kind = kind
        self._decode = msgspec.json.Decoder(kind).decode

    def read(self, body: bytes) -> _T:
        """Raises Refusal: 400 if it is not JSON, 422 if it has other fields or types than declared."""
        try:
            return self._decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise explain(self._kind, error, body) from None


read_execute = BodyReader(ExecuteBody).read
read_batch = BodyReader(BatchBody).read
read_session = BodyReader(SessionBody).read
read_cell = BodyReader(CellBody).read
read_branch = BodyReader(BranchBody).read


def admit_body(caller: Caller, body: ExecuteBody) -> Execution:
    """Check the body of a program.

    Raises:
        CallerError: it cannot be accepted, or the caller's key does not permit it.
    """
    if body.network or body.tools:
        _check_permitted(caller, body)
    return admit(caller.settings, body, caller.name)


def admit_session_body(caller: Caller, body: SessionBody) -> SessionOrder:
    """Check the body of a session.

    Raises:
        CallerError: it cannot be accepted, or the caller's key does not permit it.
    """
    if body.network or body.tools:
        _check_permitted(caller, body)
    return admit_session(caller.settings, body, caller.owner)


def _check_permitted(caller: Caller, body: ExecuteBody | SessionBody) -> None:
    """Check the network and the tools of a body against the caller's key, and narrow "all tools" to those it permits.

    Raises:
        NotAllowed: the key does not permit them.
    """
    if body.network and not caller.grants.network:
        raise NotAllowed(
            f"key {caller.name!r} may not use the network; leave it out, or ask the operator", field="network"
        )
    if not body.tools:
        return
    allowed = caller.grants.tools
    if not allowed:
        raise NotAllowed(f"key {caller.name!r} may not use tools; leave them out, or ask the operator", field="tools")
    if isinstance(allowed, bool):
        return
    if isinstance(body.tools, bool):
        body.tools = list(allowed)
    for name in body.tools:
        if name not in allowed:
            may = ", ".join(allowed)
            raise NotAllowed(f"key {caller.name!r} may not use the tool {name[:80]!r}; it may: {may}", field="tools")


def _decode_base64(text: str | bytes) -> bytes:
    """In slices, between which other threads run; only the last may be padded."""
    if len(text) <= _BASE64_SLICE:
        return base64.b64decode(text, validate=True)
    slices = (text[at : at + _BASE64_SLICE] for at in range(0, len(text), _BASE64_SLICE))
    parts = [base64.b64decode(each, validate=True) for each in slices]
    if any(len(part) != _BASE64_SLICE // 4 * 3 for part in parts[:-1]):
        raise ValueError("padding within")
    return b"".join(parts)
