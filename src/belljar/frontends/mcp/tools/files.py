"""Tools for the files in a session's work directory."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from belljar.contract.sessions import rfc3339
from belljar.frontends.mcp.results import EMBEDDED_BYTES, mime_of, resource_block, text_block, text_result, uri_of
from belljar.frontends.mcp.tool_call import Call, Json, Tool
from belljar.frontends.mcp.tools.run import GROUP, GivenFile
from belljar.frontends.mcp.tools.sessions import SessionId

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
