"""Sessions of the kernel server: opened by naming them, replaced when they have ended, listed, interrupted.

Its clients rely on a session to exist once they name it, so one that has ended (crash, `exit()`, out of memory) is
replaced by a new one of the same name. If the server is full, the caller's own least recently used session is closed,
never that of another caller.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

from msgspec import Struct
from starlette.responses import Response

from belljar.contract.errors import CallerError, NotFound, TooManySessions
from belljar.contract.files import File
from belljar.contract.request import SessionRequest
from belljar.contract.sessions import SessionOrder, SessionState, WorkFile
from belljar.engine.admission.request import admit_session
from belljar.engine.sessions import Sessions
from belljar.frontends.access.callers import Caller
from belljar.frontends.api.bodies import FileBody
from belljar.frontends.api.context import Service
from belljar.frontends.api.dialects.fastapi import read_body
from belljar.frontends.api.dialects.kernels.names import id_of, name_of
from belljar.frontends.api.request import Request, decode
from belljar.frontends.api.responses import Answer, encode_json

_WORK_DIR = "/work"  # as a program sees it
_FILES_AT_ONCE = 1000  # a thread describes more
_REPLACED_MAX = 8  # sessions that one request may close, if other requests open sessions meanwhile


class UploadBody(Struct):
    """A file for a new session, with its content; the original takes a URL to download it from."""

    url: str | None = None
    path: str | None = None
    filename: str | None = None
    content: str | None = None
    encoding: str = "utf-8"


class SessionBody(Struct):
    """The body of POST /sessions."""

    session_id: str | None = None
    file_urls: list[str] | None = None
    files: list[UploadBody] | None = None


async def create_session(service: Service, request: Request) -> Response:
    """Open a session with files in it. A session that exists already gets the files."""
    request.caller.count_request()
    body = await request.json_body()
    wanted, files, errors = await decode(body, lambda text: read_body(SessionBody, text), _read_files)
    state = await find_or_open(service, request, id_of(wanted.session_id))
    sessions, owner = service.engine.sessions, request.caller.owner
    written: list[str] = []
    for file in files:
        try:
            await sessions.write_file(owner, state.id, file.path, file.content)
            written.append(file.path)
        except CallerError as error:
            errors.append(error.message)
    data = {
        "session_id": name_of(state.id),
        "working_directory": _WORK_DIR,
        "downloaded_files": written,
        "errors": errors,
    }
    return Answer(wrap(data))


async def list_sessions(service: Service, request: Request) -> Response:
    """The sessions of this caller."""
    states = service.engine.sessions.list(request.caller.owner)
    found = {name_of(state.id): _describe(state) for state in states}
    return Answer({"sessions": found, "total": len(found)})


async def show_session(service: Service, request: Request) -> Response:
    request.caller.count_request()
    sessions, owner, session_id = service.engine.sessions, request.caller.owner, _requested_id(request)
    state = sessions.get(owner, session_id)
    files = await sessions.list_files(owner, session_id)

    def describe() -> bytes:
        return wrap(
            {
                "session_id": name_of(state.id),
                **_describe(state),
                "working_directory": _WORK_DIR,
                "files": [_describe_file(each) for each in files],
                "total_files": len(files),
            }
        )

    body = await asyncio.to_thread(describe) if len(files) > _FILES_AT_ONCE else describe()
    return Answer(body)


async def terminate_session(service: Service, request: Request) -> Response:
    """The session and every process that it started are gone when this is answered."""
    session_id = _requested_id(request)
    await service.engine.sessions.close(request.caller.owner, session_id)
    return Answer({"message": f"Session {name_of(session_id)} terminated"})


async def interrupt_session(service: Service, request: Request) -> Response:
    """Answers the same if no cell runs."""
    session_id = _requested_id(request)
    service.engine.sessions.interrupt(request.caller.owner, session_id)
    return Answer({"message": f"Session {name_of(session_id)} interrupted"})


async def find_or_open(service: Service, request: Request, session_id: str) -> SessionState:
    """The caller's session of that id, opened if it does not exist; an empty id opens a new one."""
    sessions, caller = service.engine.sessions, request.caller
    if session_id:
        with contextlib.suppress(NotFound):  # also when the session has ended: then a new one takes its name
            return sessions.get(caller.owner, session_id)
    order = admit_session(caller.settings, SessionRequest(id=session_id), caller.owner)
    state, is_new = await request.while_connected(_find_or_replace(sessions, caller, order))
    if is_new:
        service.telemetry.opened(caller.name, state)
    return state


async def _find_or_replace(sessions: Sessions, caller: Caller, order: SessionOrder) -> tuple[SessionState, bool]:
    """Like `Sessions.find_or_open`; if there is no room, the caller's least recently used session is closed."""
    replaced = 0
    while True:
        try:
            return await sessions.find_or_open(order, lambda: caller.opening(1, lambda: sessions.list(caller.owner)))
        except TooManySessions:
            if replaced == _REPLACED_MAX or not await sessions.replace_oldest(caller.owner):
                raise
            replaced += 1


def _describe(state: SessionState) -> dict[str, Any]:
    return {
        "created_at": state.created_at,
        "last_activity": state.last_used_at,
        "is_busy": state.is_busy,
        "execution_count": state.cells,
    }


def _describe_file(file: WorkFile) -> dict[str, Any]:
    path = f"{_WORK_DIR}/{file.path}"
    return {"id": file.path, "filename": file.path, "exists": True, "size": file.size_bytes, "path": path}


def _read_files(body: SessionBody) -> tuple[SessionBody, Sequence[File], list[str]]:
    """The files to write, and the errors of the others: the session is opened all the same, as in the original."""
    files: list[File] = []
    errors = [_no_download(url) for url in body.file_urls or ()]
    for number, each in enumerate(body.files or ()):
        path = each.path or each.filename
        if each.url is not None:
            errors.append(_no_download(each.url))
        elif not path or each.content is None or each.encoding not in ("utf-8", "base64"):
            errors.append(f"files[{number}] must have a path, its content, and as encoding utf-8 or base64")
        else:
            try:
                encoding: Any = each.encoding
                given = FileBody(path=path, content=each.content, encoding=encoding)
                files.append(given.as_file(f"files[{number}]"))
            except CallerError as error:
                errors.append(error.message)
    return body, files, errors


def _no_download(url: str) -> str:
    shown = url if len(url) <= 200 else url[:200] + "…"
    return f"{shown}: this server fetches nothing; send the file itself, as files: [{{path, content, encoding}}]"


def _requested_id(request: Request) -> str:
    return id_of(request.path_params["id"])


def wrap(data: dict[str, Any]) -> bytes:
    """The form of the newer answers."""
    return encode_json({"resultCode": 0, "resultMsg": "success", "data": data})
