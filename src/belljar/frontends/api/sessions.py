"""The session routes of the native API.

A session is found by its id and the key that opened it: for every other key it does not exist. If a client hangs up,
its running cell is interrupted and its waiting cell is dropped; the session stays open.
"""

from __future__ import annotations

import asyncio
import urllib.parse
from collections.abc import Sequence

from starlette.responses import Response

from belljar.contract.errors import UnsafePath
from belljar.contract.files import check_relative_path
from belljar.contract.sessions import WorkFile, rfc3339
from belljar.engine.admission.request import admit_cell
from belljar.engine.outcomes import new_id
from belljar.frontends.api.bodies import admit_session_body, read_branch, read_cell, read_session
from belljar.frontends.api.context import Service
from belljar.frontends.api.request import Request, decode
from belljar.frontends.api.responses import Answer, NoContent, encode_json
from belljar.frontends.api.streaming import Stream, send_events

_FILES_AT_ONCE = 1000  # more are described in a thread


async def open_session(service: Service, request: Request) -> Response:
    caller = request.caller
    caller.count_request()
    order = await decode(await _read_optional(request), read_session, lambda body: admit_session_body(caller, body))
    sessions = service.engine.sessions
    with caller.opening(1, lambda: sessions.list(caller.owner)):
        state = await request.while_connected(sessions.open(order))
    service.telemetry.opened(caller.name, state)
    location = (b"location", f"/v1/sessions/{state.id}".encode())
    return Answer(state.as_json(), 201, headers=(location,))


async def list_sessions(service: Service, request: Request) -> Response:
    """The sessions of this key."""
    states = service.engine.sessions.list(request.caller.owner)
    return Answer({"sessions": [state.as_json() for state in states]})


async def show_session(service: Service, request: Request) -> Response:
    state = service.engine.sessions.get(request.caller.owner, request.path_params["id"])
    return Answer(state.as_json())


async def close_session(service: Service, request: Request) -> Response:
    """The session and every process that it started are gone when this is answered."""
    await service.engine.sessions.close(request.caller.owner, request.path_params["id"])
    return NoContent()


async def run_cell(service: Service, request: Request) -> Response | None:
    caller, session_id = request.caller, request.path_params["id"]
    caller.count_request()
    body = await decode(await request.json_body(), read_cell, lambda body: body)
    sessions = service.engine.sessions
    limits = sessions.get(caller.owner, session_id).limits
    cell = admit_cell(caller.settings, limits, body, caller.name)
    cell_id = new_id()

    with caller.running_up_to(1):
        kind = request.wanted_stream()
        try:
            if kind is None:
                running = sessions.run(caller.owner, session_id, cell, waits=body.wait, execution_id=cell_id)
                return await request.answer_outcome(await request.while_connected(running))
            events = sessions.stream(caller.owner, session_id, cell, waits=body.wait, execution_id=cell_id)
            stream = Stream(request, kind)
            await request.while_connected(send_events(service, stream, events))
            await request.end()
            return None
        except ConnectionError:
            service.telemetry.left_cell(session_id, cell, cell_id)
            raise


async def branch_session(service: Service, request: Request) -> Response:
    caller = request.caller
    caller.count_request()
    body = await decode(await _read_optional(request), read_branch, lambda body: body)
    sessions = service.engine.sessions
    with caller.opening(body.count, lambda: sessions.list(caller.owner)):
        branching = sessions.branch(caller.owner, request.path_params["id"], body.count, reseed=body.reseed)
        states = await request.while_connected(branching)
    for state in states:
        service.telemetry.opened(caller.name, state)
    return Answer({"sessions": [state.as_json() for state in states]})


async def interrupt_session(service: Service, request: Request) -> Response:
    """Not counted as a request: a key over its quota must still be able to stop what it started."""
    was_running = service.engine.sessions.interrupt(request.caller.owner, request.path_params["id"])
    return Answer({"interrupted": was_running})


async def list_files(service: Service, request: Request) -> Response:
    request.caller.count_request()
    files = await service.engine.sessions.list_files(request.caller.owner, request.path_params["id"])
    body = await asyncio.to_thread(_encode_files, files) if len(files) > _FILES_AT_ONCE else _encode_files(files)
    return Answer(body)


async def write_file(service: Service, request: Request) -> Response:
    """The body is the file."""
    request.caller.count_request()
    path = read_path(request)
    sessions, owner, session_id = service.engine.sessions, request.caller.owner, request.path_params["id"]
    sessions.get(owner, session_id)  # before reading a body that no session can take
    await sessions.write_file(owner, session_id, path, await request.body())
    return NoContent()


async def read_file(service: Service, request: Request) -> Response:
    """The answer is the file."""
    request.caller.count_request()
    path = read_path(request)
    ahead = await request.keep_ahead(service.settings.request.files_bytes)
    content = await service.engine.sessions.read_file(request.caller.owner, request.path_params["id"], path)
    request.let_go(ahead - min(ahead, len(content)))
    # The program chose the content: no browser may treat it as a page of this server.
    headers = ((b"content-disposition", b"attachment"), (b"content-security-policy", b"sandbox"))
    return Answer(content, media_type="application/octet-stream", headers=headers)


async def delete_file(service: Service, request: Request) -> Response:
    request.caller.count_request()
    await service.engine.sessions.delete_file(request.caller.owner, request.path_params["id"], read_path(request))
    return NoContent()


def _encode_files(files: Sequence[WorkFile]) -> bytes:
    described = [
        {"path": each.path, "bytes": each.size_bytes, "modified_at": rfc3339(each.modified_at)} for each in files
    ]
    return encode_json({"files": described})


async def _read_optional(request: Request) -> bytes:
    """The body of a call that needs none: an empty one means `{}`."""
    has_length = request.header_bytes.get(b"content-length", b"0") != b"0"
    if has_length or b"transfer-encoding" in request.header_bytes:
        return await request.json_body()
    await request.body()
    return b"{}"


def read_path(request: Request) -> str:
    """The path in the work directory that a request is about.

    Decoded here from the raw bytes: a request for a name that is not UTF-8 must not get the file of another name.

    Raises:
        UnsafePath: it is not a path in the work directory.
    """
    _, _, raw = request.scope["raw_path"].partition(b"/files/")
    try:
        return check_relative_path(urllib.parse.unquote_to_bytes(raw).decode())
    except UnicodeDecodeError:
        raise UnsafePath("the file path is not UTF-8; encode it as UTF-8, then as %XX", path=repr(raw)) from None
