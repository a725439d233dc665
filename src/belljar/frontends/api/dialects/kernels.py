"""The wire behaviour of the kernel server "Python Sandbox MCP Server": cells in named sessions, told line by line.

A session is made by naming it. Its clients count on that, so one that has ended (a crash, `exit()`, its memory) is
replaced by a fresh one of the same name; and where the server is full, the caller's own session that was unused for
longest makes room, never somebody else's.

Two prefixes, because its documentation and its code disagree.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from belljar import __version__
from belljar.contract.errors import CallerError, NotFound, SessionExists, TooManySessions
from belljar.contract.execution import Event, Execution, Outcome
from belljar.contract.files import File
from belljar.contract.sessions import SessionState, WorkFile
from belljar.engine.admission import admit_cell, admit_session
from belljar.engine.execute import new_id
from belljar.frontends.api.dialects.kernel_lines import Line, lines_of
from belljar.frontends.api.replies import NO_SNIFFING, Headers, Refusal, encode_json, refusal_of, reply
from belljar.frontends.api.request import Request
from belljar.frontends.api.routing import Answer, Dialect, Methods
from belljar.frontends.api.schemas import FileBody, as_file
from belljar.frontends.api.service import Service

PREFIXES = ("/api/v1", "/ai/sandbox/v1/api")
_NDJSON = b"application/x-ndjson; charset=utf-8"
_WORK_DIR = "/work"  # as a program sees it
_PLAIN = re.compile(rb"[A-Za-z0-9._-]")
_ODD_START = "0~~"  # before a name that does not start with a letter or digit; no escape looks like this
_REPLACED_MAX = 8  # sessions that one request may push out, if others open theirs meanwhile
_started_at = time.monotonic()

_T = TypeVar("_T")


class ExecuteBody(Struct):
    """The body of /execute and /execute_sync; `variables` is taken and means nothing, as in the original."""

    code: str
    session_id: str | None = None
    timeout: float | None = None
    variables: dict[str, Any] | None = None


class UploadBody(Struct):
    """A file for a new session: its content; the original takes an address to fetch it from."""

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


_decode_execute = msgspec.json.Decoder(ExecuteBody, strict=False).decode
_decode_session = msgspec.json.Decoder(SessionBody, strict=False).decode


@dataclass(frozen=True, slots=True)
class _Cell:
    """A cell about to run, and what it does once somebody reads it."""

    execution: Execution
    session: str
    events: AsyncGenerator[Event, None]

    @property
    def headers(self) -> Headers:
        """The session's name, which the original never tells to those who named none."""
        return ((b"x-session-id", _name_of(self.session).encode("ascii", "backslashreplace")),)


# ---- cells


async def execute(service: Service, request: Request) -> None:
    """POST …/execute: a line for each thing that happens."""
    async with _prepare(service, request) as cell:
        stream = _Lines(request, cell.headers)
        await _while_connected(request, _stream(service, request, cell, stream))
        await stream.end()


async def execute_sync(service: Service, request: Request) -> None:
    """POST …/execute_sync: the same, all at once."""
    data: dict[str, list[Any]] = {"texts": [], "images": [], "errors": []}

    async def collect(line: Line) -> None:
        for key, kind in (("text", "texts"), ("image", "images"), ("error", "errors")):
            if key in line:
                data[kind].append(line if key == "error" else line[key])

    async with _prepare(service, request) as cell:
        await _while_connected(request, _run(service, request, cell, collect))
        await reply(request.send, _wrap(data), headers=cell.headers)


@contextlib.asynccontextmanager
async def _prepare(service: Service, request: Request) -> AsyncIterator[_Cell]:
    """The cell that the body asks for, in its session, which is opened if there is none of that name."""
    caller = request.caller
    caller.count_request()
    asked = _read(_decode_execute, await request.read())
    state = await _find_or_open(service, request, _id_of(asked.session_id))
    timeout = None
    if asked.timeout is not None and asked.timeout > 0:
        timeout = min(asked.timeout, caller.settings.ceiling_limits.wall_seconds)
    code = asked.code if asked.code.strip() else "pass"
    execution = admit_cell(caller.settings, state.limits, code, timeout=timeout, caller=caller.name)
    with caller.running_up_to(1):
        events = service.engine.sessions.stream(caller.owner, state.id, execution, execution_id=new_id())
        async with contextlib.aclosing(events):
            yield _Cell(execution, state.id, events)


async def _run(service: Service, request: Request, cell: _Cell, tell: Callable[[Line], Awaitable[None]]) -> None:
    async with contextlib.aclosing(lines_of(cell.events, cell.execution)) as lines:
        async for line in lines:
            if isinstance(line, Outcome):
                service.health.ran()
                service.telemetry.ran_cell(request.caller.name, cell.session, cell.execution, line)
            else:
                await tell(line)


async def _stream(service: Service, request: Request, cell: _Cell, stream: _Lines) -> None:
    try:
        await _run(service, request, cell, stream.tell)
    except Exception as error:  # once the status is sent, what is wrong can only be told in the stream
        if not stream.has_begun or isinstance(error, ConnectionError):
            raise
        if not isinstance(error, CallerError):
            service.health.doubt()
        await stream.tell({"error": refusal_of(error).message, "traceback": []})


class _Lines:
    """The body of a streaming answer; that of a cell which says nothing is empty."""

    def __init__(self, request: Request, headers: Headers) -> None:
        self._request = request
        self._headers = headers
        self.has_begun = False

    async def tell(self, line: Line) -> None:
        """Send one line; waits while the client reads more slowly than the cell writes."""
        await self._begin()
        await self._request.send({"type": "http.response.body", "body": encode_json(line) + b"\n", "more_body": True})

    async def end(self) -> None:
        """No more lines."""
        await self._begin()
        await self._request.send({"type": "http.response.body", "body": b""})

    async def _begin(self) -> None:
        if self.has_begun:
            return
        self.has_begun = True
        head = [
            (b"content-type", _NDJSON),
            (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"),  # a proxy that collects would turn a stream into a wait
            NO_SNIFFING,
            *self._headers,
        ]
        await self._request.send({"type": "http.response.start", "status": 200, "headers": head})


# ---- sessions


async def create_session(service: Service, request: Request) -> None:
    """POST …/sessions: a session with files in it. One that is there already gets the files."""
    request.caller.count_request()
    asked = _read(_decode_session, await request.read())
    files, errors = _read_files(asked)
    state = await _find_or_open(service, request, _id_of(asked.session_id))
    sessions, owner = service.engine.sessions, request.caller.owner
    written: list[str] = []
    for file in files:
        try:
            await sessions.write_file(owner, state.id, file.path, file.content)
            written.append(file.path)
        except CallerError as error:
            errors.append(error.message)
    data = {
        "session_id": _name_of(state.id),
        "working_directory": _WORK_DIR,
        "downloaded_files": written,
        "errors": errors,
    }
    await reply(request.send, _wrap(data))


async def list_sessions(service: Service, request: Request) -> None:
    """GET …/sessions: those of this caller."""
    states = service.engine.sessions.list(request.caller.owner)
    found = {_name_of(state.id): _describe(state) for state in states}
    await reply(request.send, encode_json({"sessions": found, "total": len(found)}))


async def show_session(service: Service, request: Request) -> None:
    """GET …/sessions/{id}."""
    request.caller.count_request()
    sessions, owner, session_id = service.engine.sessions, request.caller.owner, _asked_id(request)
    state = sessions.get(owner, session_id)
    files = await sessions.list_files(owner, session_id)
    body = {
        "session_id": _name_of(state.id),
        **_describe(state),
        "working_directory": _WORK_DIR,
        "files": [_describe_file(each) for each in files],
        "total_files": len(files),
    }
    await reply(request.send, _wrap(body))


async def terminate_session(service: Service, request: Request) -> None:
    """DELETE …/sessions/{id}: gone, with all it started, when this is answered."""
    session_id = _asked_id(request)
    await service.engine.sessions.close(request.caller.owner, session_id)
    await reply(request.send, encode_json({"message": f"Session {_name_of(session_id)} terminated"}))


async def interrupt_session(service: Service, request: Request) -> None:
    """POST …/sessions/{id}/interrupt: as good as done if nothing runs."""
    session_id = _asked_id(request)
    service.engine.sessions.interrupt(request.caller.owner, session_id)
    await reply(request.send, encode_json({"message": f"Session {_name_of(session_id)} interrupted"}))


async def _find_or_open(service: Service, request: Request, session_id: str) -> SessionState:
    sessions, caller = service.engine.sessions, request.caller
    if session_id:
        with contextlib.suppress(NotFound):  # also when it has ended: then a new one takes its name
            return sessions.get(caller.owner, session_id)
    order = admit_session(caller.settings, id=session_id, caller=caller.owner)
    for _ in range(_REPLACED_MAX):
        try:
            with caller.opening(1, lambda: sessions.list(caller.owner)):
                state = await _while_connected(request, sessions.open(order))
            service.telemetry.opened(caller.name, state)
            return state
        except SessionExists:  # somebody was quicker, or it is being opened: wait for that one
            await asyncio.sleep(0.01)
            with contextlib.suppress(NotFound):
                return sessions.get(caller.owner, session_id)
        except TooManySessions:
            idle = [each for each in sessions.list(caller.owner) if not each.is_busy]
            if not idle:
                raise
            with contextlib.suppress(NotFound):
                await sessions.close(caller.owner, min(idle, key=lambda each: each.last_used_at).id, "replaced")
    return await sessions.open(order)


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


def _read_files(asked: SessionBody) -> tuple[Sequence[File], list[str]]:
    """The files to write, and what is wrong with the others: the session is made all the same, as in the original."""
    files: list[File] = []
    errors = [_no_download(url) for url in asked.file_urls or ()]
    for number, each in enumerate(asked.files or ()):
        path = each.path or each.filename
        if each.url is not None:
            errors.append(_no_download(each.url))
        elif not path or each.content is None or each.encoding not in ("utf-8", "base64"):
            errors.append(f"files[{number}] must have a path, its content, and as encoding utf-8 or base64")
        else:
            try:
                encoding: Any = each.encoding
                files.append(as_file(number, FileBody(path=path, content=each.content, encoding=encoding)))
            except CallerError as error:
                errors.append(error.message)
    return files, errors


def _no_download(url: str) -> str:
    shown = url if len(url) <= 200 else url[:200] + "…"
    return f"{shown}: this server fetches nothing; send the file itself, as files: [{{path, content, encoding}}]"


# ---- names


def _id_of(name: str | None) -> str:
    """A session's id for the name a client gives it, which may be any text; empty for none.

    Raises:
        Refusal: it is too long.
    """
    if not name:
        return ""
    kept = (chr(byte) if _PLAIN.match(bytes([byte])) else f"~{byte:02X}" for byte in name.encode("utf-8", "replace"))
    text = "".join(kept)
    if not text[0].isalnum():
        text = _ODD_START + text
    if len(text) > 128:
        raise Refusal(422, "invalid_request", "session_id is too long; use up to 128 plain letters and digits")
    return text


def _name_of(session_id: str) -> str:
    """The name that `_id_of` made an id of; other ids are their own."""
    text = session_id.removeprefix(_ODD_START)
    pieces = re.split(r"~([0-9A-F]{2})", text)
    content = b"".join(
        bytes([int(piece, 16)]) if at % 2 else piece.encode("utf-8", "replace") for at, piece in enumerate(pieces)
    )
    return content.decode("utf-8", "replace")


def _asked_id(request: Request) -> str:
    return _id_of(request.parameters["id"])


# ---- health, and how it is said


async def show_health(service: Service, request: Request) -> None:
    """GET …/health."""
    trouble = service.health.trouble
    body = {
        "status": "unhealthy" if trouble else "healthy",
        "version": __version__,
        "active_sessions": service.engine.sessions.facts()["open"],
        "uptime": round(time.monotonic() - _started_at, 3),
    }
    await reply(request.send, encode_json(body), 503 if trouble else 200)


async def show_info(service: Service, request: Request) -> None:
    """GET /, on a port of its own."""
    body = {
        "name": "Python Sandbox MCP Server",
        "version": __version__,
        "health": "/health",
        "api_endpoint": PREFIXES[1],
        "served_by": "belljar",
    }
    await reply(request.send, encode_json(body))


def _wrap(data: dict[str, Any]) -> bytes:
    return encode_json({"resultCode": 0, "resultMsg": "success", "data": data})


def _read(decode: Callable[[bytes], _T], body: bytes) -> _T:
    try:
        return decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        message = "the body is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise Refusal(422, "invalid_request", message) from None


async def _while_connected(request: Request, work: Coroutine[Any, Any, _T]) -> _T:
    """Do `work` as long as the client is there to hear of it; who leaves has his cell interrupted."""
    task = asyncio.ensure_future(work)
    request.on_hang_up(task.cancel)
    try:
        return await task
    except asyncio.CancelledError:
        if (ours := asyncio.current_task()) is not None and ours.cancelling():
            raise
        raise ConnectionError("the client left") from None


def refuse(refusal: Refusal) -> Answer:
    """`{"detail": …}`, with the words that its clients and its tests look for."""
    if refusal.code == "unauthorized":
        detail: Any = "Invalid API key" if refusal.details.get("key") == "unknown" else "API key required"
    elif refusal.code in ("session_not_found", "session_ended"):
        detail = "Session not found"
    elif refusal.status in (400, 422):
        named = re.search(r"(?:at `\$\.|field `)(\w+)", refusal.message)
        place = ["body", named[1]] if named else ["body"]
        detail = [{"loc": place, "msg": refusal.message, "type": refusal.code}]
    else:
        detail = refusal.message
    return Answer(encode_json({"detail": detail}), status=422 if refusal.status == 400 else 0)


_BELOW: dict[str, Methods] = {
    "/execute": {"POST": execute},
    "/execute_sync": {"POST": execute_sync},
    "/sessions": {"GET": list_sessions, "POST": create_session},
    "/sessions/{id}": {"GET": show_session, "DELETE": terminate_session},
    "/sessions/{id}/interrupt": {"POST": interrupt_session},
    "/health": {"GET": show_health},
}

DIALECT = Dialect(
    name="kernels",
    title="Python Sandbox MCP Server",
    port=16010,
    routes={
        **{prefix + path: methods for prefix in PREFIXES for path, methods in _BELOW.items()},
        "/health": {"GET": show_health},
        "/": {"GET": show_info},
    },
    refuse=refuse,
    open_to_all=frozenset({"/", "/health", *(prefix + "/health" for prefix in PREFIXES)}),
)
