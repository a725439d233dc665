"""Tools for sessions. Calls may use different connections, so the session id is an argument of each."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from belljar.contract.files import File
from belljar.contract.request import SessionRequest
from belljar.engine.admission.request import admit_session
from belljar.frontends.mcp.results import text_result
from belljar.frontends.mcp.tool_call import Call, Json, Tool
from belljar.frontends.mcp.tools.run import GROUP, GivenFile

BRANCHES_MAX = 16

SESSION_SCHEMA: Json = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "description": "the session_id of later calls"},
        "language": {"type": "string"},
        "state": {"type": "string", "enum": ["idle", "busy"]},
        "cells": {"type": "integer"},
        "memory_bytes": {"type": "integer"},
        "created_at": {"type": "string"},
        "last_used_at": {"type": "string"},
        "expires_at": {"type": "string", "description": "when it is closed, if it is not used before"},
        "parent": {"type": ["string", "null"]},
        "limits": {"type": "object"},
    },
    "required": ["id", "language", "state", "cells", "expires_at"],
}
SESSIONS_SCHEMA: Json = {
    "type": "object",
    "properties": {"sessions": {"type": "array", "items": SESSION_SCHEMA}},
    "required": ["sessions"],
}

SessionId = Annotated[str, Meta(description="the id that open_session gave")]


class OpenSession(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of open_session."""

    language: str = "python"
    files: Annotated[list[GivenFile], Meta(description="put into its work directory at the start")] = []
    idle_seconds: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        Meta(description="closed when unused for so long; the server has a default"),
    ] = None
    memory_mb: Annotated[
        Annotated[float, Meta(gt=0)] | None, Meta(description="for its whole life; the server has a default")
    ] = None


class BranchSession(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of branch_session."""

    session_id: SessionId
    count: Annotated[int, Meta(ge=1, le=BRANCHES_MAX, description="how many copies")] = 1


class CloseSession(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of close_session."""

    session_id: SessionId


async def open_session(call: Call, given: OpenSession) -> Json:
    session = SessionRequest(
        language=given.language,
        environment=call.environment_of(given.language),
        memory_mb=given.memory_mb,
        idle_seconds=given.idle_seconds,
        env=call.config.env,
        network=call.has_network,
        files=[File(path=each.path, content=each.read(f"files[{at}]")) for at, each in enumerate(given.files)],
    )
    order = admit_session(call.caller.settings, session, call.caller.owner)
    state = await call.open_session(order)
    shown = state.as_json()
    text = f"session_id: {state.id}\nPass it to run_code; it is closed at {shown['expires_at']} if unused."
    return call.result(text, shown)


async def branch_session(call: Call, given: BranchSession) -> Json:
    copies = await call.branch_session(given.session_id, given.count)
    text = "\n".join(f"session_id: {state.id}" for state in copies)
    return call.result(text, {"sessions": [state.as_json() for state in copies]})


async def close_session(call: Call, given: CloseSession) -> Json:
    sessions = await call.sessions()
    await call.wait(sessions.close(call.caller.owner, given.session_id))
    return text_result(f"session {given.session_id} is closed")


OPEN_SESSION = Tool(
    name="open_session",
    title="Open a session",
    description=(
        "Start an interpreter that stays. Pass the session_id it returns to run_code: variables, imports and files "
        "then stay from one call to the next, and the value of the last expression is shown as in a notebook. Close "
        "it with close_session when you are done; unused sessions close by themselves."
    ),
    takes=OpenSession,
    call=open_session,
    group=GROUP,
    gives=SESSION_SCHEMA,
)
BRANCH_SESSION = Tool(
    name="branch_session",
    title="Branch a session",
    description=(
        "Copy a live session with all its variables, imports and files, in milliseconds. Use it to try several ways "
        "from one state: what happens in a copy never reaches the original. Returns the ids of the copies."
    ),
    takes=BranchSession,
    call=branch_session,
    group=GROUP,
    gives=SESSIONS_SCHEMA,
)
CLOSE_SESSION = Tool(
    name="close_session",
    title="Close a session",
    description="End a session and whatever runs in it. Its variables and files are gone.",
    takes=CloseSession,
    call=close_session,
    group=GROUP,
    is_destructive=True,
    is_idempotent=True,
)
