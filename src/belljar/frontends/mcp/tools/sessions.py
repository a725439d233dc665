"""Tools for sessions and their files. Calls may use different connections, so each takes the session id."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from belljar.contract.files import File
from belljar.contract.request import SessionRequest
from belljar.contract.sessions import rfc3339
from belljar.engine.admission.request import admit_session
from belljar.frontends.mcp.tool_call import (
    EMBEDDED_BYTES,
    Call,
    Json,
    Tool,
    mime_of,
    resource_block,
    text_block,
    text_result,
    uri_of,
)
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
        Meta(description="the session is closed when unused for this long; the server has a default"),
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


FilePath = Annotated[str, Meta(description="relative to the session's work directory")]


class UploadFile(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of upload_file."""

    session_id: SessionId
    path: FilePath
    content: Annotated[str, Meta(description="the text, or base64 of the bytes")]
    encoding: Literal["utf-8", "base64"] = "utf-8"


class DownloadFile(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of download_file."""

    session_id: SessionId
    path: FilePath


class ListFiles(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of list_files."""

    session_id: SessionId


async def upload_file(call: Call, given: UploadFile) -> Json:
    content = GivenFile(path=given.path, content=given.content, encoding=given.encoding).read("upload_file")
    sessions = await call.sessions()
    await call.wait(sessions.write_file(call.caller.owner, given.session_id, given.path, content))
    return text_result(f"{given.path}: {len(content)} bytes written")


async def download_file(call: Call, given: DownloadFile) -> Json:
    sessions = await call.sessions()
    content = await call.wait(sessions.read_file(call.caller.owner, given.session_id, given.path))
    if len(content) > EMBEDDED_BYTES:
        return text_result(
            f"{given.path} has {len(content)} bytes, and at most {EMBEDDED_BYTES} can be returned; read it in pieces "
            "with run_code",
            is_error=True,
        )
    block = resource_block(uri_of(f"session://{given.session_id}/files/", given.path), content, mime_of(given.path))
    return {"content": [text_block(f"{given.path}: {len(content)} bytes"), block], "isError": False}


async def list_files(call: Call, given: ListFiles) -> Json:
    sessions = await call.sessions()
    files = await call.wait(sessions.list_files(call.caller.owner, given.session_id))
    listed = [{"path": each.path, "bytes": each.size_bytes, "modified_at": rfc3339(each.modified_at)} for each in files]
    text = "\n".join(f"{each['path']} ({each['bytes']} bytes)" for each in listed) or "there are no files"
    return call.result(text, {"files": listed})


FILES_SCHEMA: Json = {
    "type": "object",
    "properties": {
        "files": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "path": {"type": "string"},
                    "bytes": {"type": "integer"},
                    "modified_at": {"type": "string"},
                },
                "required": ["path", "bytes", "modified_at"],
            },
        }
    },
    "required": ["files"],
}

UPLOAD_FILE = Tool(
    name="upload_file",
    title="Upload a file",
    description="Write a file into a session's work directory; one of the same name is replaced.",
    takes=UploadFile,
    call=upload_file,
    group=GROUP,
    is_destructive=True,
    is_idempotent=True,
)
DOWNLOAD_FILE = Tool(
    name="download_file",
    title="Download a file",
    description="Return a file of a session's work directory as a resource: text as text, anything else in base64.",
    takes=DownloadFile,
    call=download_file,
    group=GROUP,
    is_read_only=True,
    is_idempotent=True,
)
LIST_FILES = Tool(
    name="list_files",
    title="List files",
    description="List the files in a session's work directory, with their sizes.",
    takes=ListFiles,
    call=list_files,
    group=GROUP,
    gives=FILES_SCHEMA,
    is_read_only=True,
    is_idempotent=True,
)
