"""The bodies of the session calls: typed and strict, as those in `schemas`.

A cell has fewer limits of its own than a program: memory, disk and processes are the session's, for its whole life.
"""

from __future__ import annotations

import urllib.parse
from typing import Annotated

from msgspec import Meta, Struct

from belljar.contract.errors import UnsafePath
from belljar.contract.execution import Execution
from belljar.contract.files import check_relative_path
from belljar.contract.sessions import SessionOrder, SessionState
from belljar.engine.admission.request import admit_cell, admit_session
from belljar.frontends.access.callers import Caller
from belljar.frontends.api.bodies import (
    BodyReader,
    FileBody,
    LimitsBody,
    Positive,
    as_file,
    as_given,
    check_network,
    wanted_tools,
)
from belljar.frontends.api.request import Request

BRANCHES_MAX = 64  # of one request


class SessionBody(Struct, forbid_unknown_fields=True):
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


class CellLimitsBody(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """What one cell may use; what is left out is the session's."""

    wall_seconds: Positive | None = None
    cpu_seconds: Positive | None = None
    output_kb: Positive | None = None


class CellBody(Struct, forbid_unknown_fields=True):
    """The body of POST /v1/sessions/{id}/execute."""

    code: Annotated[str, Meta(min_length=1)]
    timeout: Positive | None = None
    limits: CellLimitsBody | None = None
    artifacts: list[str] = []
    wait: bool = True


class BranchBody(Struct, forbid_unknown_fields=True):
    """The body of POST /v1/sessions/{id}/branch."""

    count: Annotated[int, Meta(ge=1, le=BRANCHES_MAX)] = 1
    reseed: bool = True


read_session = BodyReader(SessionBody).read
read_cell = BodyReader(CellBody).read
read_branch = BodyReader(BranchBody).read


async def read_optional(request: Request) -> bytes:
    """The body of a call that needs none: nothing at all is as good as `{}`."""
    has_length = request.headers.get(b"content-length", b"0") != b"0"
    if has_length or b"transfer-encoding" in request.headers:
        return await request.read()
    await request.read(is_json=False)
    return b"{}"


def read_path(request: Request) -> str:
    """The path in the work directory that a request is about.

    Decoded here from the raw bytes: who asks for a name that is not UTF-8 must not get the file of another name.

    Raises:
        UnsafePath: it is not one.
    """
    _, _, raw = request.scope["raw_path"].partition(b"/files/")
    try:
        return check_relative_path(urllib.parse.unquote_to_bytes(raw).decode())
    except UnicodeDecodeError:
        raise UnsafePath("the file path is not UTF-8; encode it as UTF-8, then as %XX", path=repr(raw)) from None


def order_of(caller: Caller, asked: SessionBody) -> SessionOrder:
    """The session that is asked for.

    Raises:
        CallerError: it cannot be accepted, or this caller may not.
    """
    if asked.network:
        check_network(caller)
    return admit_session(
        caller.settings,
        id=asked.id,
        language=asked.language,
        environment=asked.environment,
        limits=as_given(asked.limits),
        idle_seconds=asked.idle_seconds,
        env=asked.env,
        network=asked.network,
        tools=wanted_tools(caller, asked.tools),
        files=[as_file(number, each) for number, each in enumerate(asked.files)],
        caller=caller.owner,
    )


def cell_of(caller: Caller, state: SessionState, asked: CellBody) -> Execution:
    """The cell that is asked for.

    Raises:
        CallerError: it cannot be accepted.
    """
    return admit_cell(
        caller.settings,
        state.limits,
        asked.code,
        limits=as_given(asked.limits),
        timeout=asked.timeout,
        artifacts=asked.artifacts,
        caller=caller.name,
    )
