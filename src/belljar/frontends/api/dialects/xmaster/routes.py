"""The wire behaviour of X-Master's code server: /execute, /submit and its result stream, tools as plain names.

A request without a session id is an independent run, although the answer has the session id "test_id": in the original
all such callers share one namespace. Each caller has its own session ids.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from functools import partial
from typing import Any

from msgspec import UNSET, Struct, UnsetType
from starlette.responses import Response

from belljar.contract.errors import BelljarError, NotFound, ToolFailed
from belljar.contract.execution import Event, Execution, Finished, Outcome, Status, ToolAnswered, ToolCalled, cut_note
from belljar.contract.request import CellRequest, ExecutionRequest, SessionRequest
from belljar.contract.sessions import SessionState
from belljar.engine.admission.request import admit, admit_cell, admit_session
from belljar.engine.outcomes import new_id
from belljar.frontends.access.callers import Caller
from belljar.frontends.access.refusals import Refusal
from belljar.frontends.api.context import Service
from belljar.frontends.api.dialects.fastapi import read_body, read_whole, refuse, unprocessable
from belljar.frontends.api.dialects.xmaster.background_jobs import BackgroundJobs, EventLog, EventLogs, make_line
from belljar.frontends.api.dialects.xmaster.wrapping import (
    NO_SESSION,
    open_session,
    read_traceback,
    wrap_cell,
    wrap_program,
)
from belljar.frontends.api.large_bodies import AT_ONCE_BYTES, check
from belljar.frontends.api.request import Request, decode
from belljar.frontends.api.responses import JSON_TYPE, Answer, encode_json
from belljar.frontends.api.routing import Dialect

_WAIT_SECONDS = 600.0  # for a run whose events a client wants to read
_LINES_MAX = 10_000


class ExecuteBody(Struct):
    """The body of /execute and /submit."""

    code: str
    timeout: int | None = 180
    session_id: str | UnsetType = UNSET
    #: Fields of requests for other servers with the same paths: E2B and SandboxFusion.
    context_id: Any = UNSET
    env_vars: Any = UNSET
    dataset: Any = UNSET


class PutBody(Struct):
    """The body of /put_item, and each line of /stream_put_item."""

    session_id: str
    item: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Submission:
    """The code to run, and its session."""

    code: str
    seconds: int | None
    session_id: str | None  # None: an independent run
    key: str  # the id of the session in the engine

    @property
    def shown_id(self) -> str:
        return NO_SESSION if self.session_id is None else self.session_id


def _read(body: bytes) -> ExecuteBody:
    return read_body(ExecuteBody, body)


def _check(body: ExecuteBody) -> _Submission:
    for name, server in (("context_id", "E2B"), ("env_vars", "E2B"), ("dataset", "SandboxFusion")):
        if getattr(body, name) is not UNSET:
            raise Refusal(404, "not_found", f"{name} is a field of {server}'s API, which is not served here")
    if not body.code.strip():
        raise Refusal(400, "blank", "Code cannot be empty")
    session_id = None if body.session_id is UNSET else body.session_id
    key = "" if session_id is None else _session_key(session_id)
    return _Submission(code=body.code, seconds=body.timeout, session_id=session_id, key=key)


class XMaster:
    """The routes, background runs and their event logs."""

    def __init__(self) -> None:
        self._logs = EventLogs()
        self._jobs = BackgroundJobs()

    # ---- running

    async def execute(self, service: Service, request: Request) -> Response:
        caller = request.caller
        caller.count_request()
        submission = await decode(await request.body(), _read, _check)
        with caller.running_up_to(1):
            answer = await self._run(service, request, submission)
        return Answer({**answer, "session_id": submission.shown_id})

    async def _run(self, service: Service, request: Request, submission: _Submission) -> dict[str, Any]:
        caller, execution_id = request.caller, new_id()
        if submission.seconds is not None and submission.seconds <= 0:
            return {"output": "", "error": _timed_out(submission.seconds), "execution_time": 0.0}
        if submission.session_id is None:
            execution = _one_shot(service, caller, submission)
            request.on_hang_up(lambda: service.engine.cancel(execution_id))
            outcome = await service.engine.run(execution, id=execution_id)
        else:
            execution = await request.while_connected(self._cell(service, caller, submission))
            running = service.engine.sessions.run(_owner(caller), submission.key, execution, execution_id=execution_id)
            try:
                outcome = await request.while_connected(running)
            except ConnectionError:
                service.telemetry.left_cell(submission.key, execution, execution_id)
                raise
        return _describe(submission, execution, outcome)

    async def _cell(self, service: Service, caller: Caller, submission: _Submission) -> Execution:
        """The cell for a session, which is opened if it does not exist."""
        assert submission.session_id is not None
        try:
            state = service.engine.sessions.get(_owner(caller), submission.key)
        except NotFound:
            state = await self._find_or_open(service, caller, submission.key, submission.session_id)
        limits, timeout = _output_limit(caller), _seconds(caller, submission)
        cell = CellRequest(wrap_cell(submission.code), limits=limits, timeout=timeout)
        return admit_cell(caller.settings, state.limits, cell, caller.name)

    async def _find_or_open(self, service: Service, caller: Caller, id: str, session_id: str) -> SessionState:
        settings, owner = caller.settings, _owner(caller)
        session = SessionRequest(id=id, idle_seconds=settings.sessions.idle_seconds_max, tools=_tools(service, caller))
        order = admit_session(settings, session, owner)
        first = admit_cell(settings, order.limits, CellRequest(open_session(session_id)), caller.name)
        sessions = service.engine.sessions
        owners = owner, caller.owner
        room = partial(caller.opening, 1, lambda: [each for one in owners for each in sessions.list(one)])
        state, is_new = await sessions.find_or_open(order, room, first)
        if is_new:
            service.telemetry.opened(caller.name, state)
        return state

    # ---- in the background

    async def submit(self, service: Service, request: Request) -> Response:
        caller = request.caller
        caller.count_request()
        body = await request.body()
        submission = await decode(body, _read, _check)
        with contextlib.ExitStack() as held:
            held.enter_context(caller.running_up_to(1))
            held.enter_context(self._jobs.room(service.settings, caller.name, len(body)))
            log = self._logs.new((_owner(caller), submission.shown_id))
            self._jobs.start(self._run_logged(service, caller, submission, log), held.pop_all())
        return Answer({"status": "success", "session_id": submission.shown_id})

    async def _run_logged(self, service: Service, caller: Caller, submission: _Submission, log: EventLog) -> None:
        log.put(make_line("tool_result", "start"))
        content = ""
        try:
            answer = await self._stream_run(service, caller, submission, log)
            content = answer["error"] or answer["output"]
        except BelljarError as error:
            content = error.message
        finally:
            log.end(make_line("code_result", "running", content=content), make_line("tool_result", "end"))

    async def _stream_run(
        self, service: Service, caller: Caller, submission: _Submission, log: EventLog
    ) -> dict[str, Any]:
        if submission.seconds is not None and submission.seconds <= 0:
            return {"output": "", "error": _timed_out(submission.seconds)}
        events: AsyncGenerator[Event, None]
        if submission.session_id is None:
            execution = _one_shot(service, caller, submission)
            events = service.engine.stream(execution)
        else:
            execution = await self._cell(service, caller, submission)
            events = service.engine.sessions.stream(_owner(caller), submission.key, execution)
        async with contextlib.aclosing(events):
            async for event in events:
                if isinstance(event, ToolCalled):
                    log.put(make_line("tool_result", "running", {"tool_name": event.tool}))
                    called: dict[str, Any] = {"call_tool": event.tool, "call_args": dict(event.arguments)}
                    log.put(make_line("tool_result", "running", called))
                elif isinstance(event, ToolAnswered):
                    answer = {"tool_result": event.result, "tool_elapsed_time": event.call.seconds}
                    results = {event.call.tool: answer if event.call.ok else None}
                    log.put(make_line("tool_result", "running", results))
                elif isinstance(event, Finished):
                    return _describe(submission, execution, event.outcome)
        raise AssertionError("a stream ends with its outcome")

    async def stream(self, service: Service, request: Request) -> None:
        key = _owner(request.caller), request.path_params["session_id"]
        if not self._logs.knows(key) and not _has_session(service, request.caller, key[1]):
            raise Refusal(404, "not_found", "Session not found")
        await request.body()
        session_logs = self._logs.touch(key)
        reading = asyncio.ensure_future(self._logs.take(key))
        gone = asyncio.ensure_future(request.receive())
        log: EventLog | None = None
        try:
            await asyncio.wait([reading, gone], timeout=_WAIT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                raise Refusal(404, "not_found", "Session not found")
            log = reading.result()
            session_logs.being_read.add(log)
            await self._send_all(request, log, gone)
        finally:
            for each in (reading, gone):
                each.cancel()
            if log is not None:
                session_logs.put_back(log)

    async def _send_all(self, request: Request, log: EventLog, gone: asyncio.Future[Any]) -> None:
        await request.begin(JSON_TYPE, (b"cache-control", b"no-store"))
        while True:
            waiting = asyncio.ensure_future(log.next())
            await asyncio.wait([waiting, gone], return_when=asyncio.FIRST_COMPLETED)
            if gone.done():
                if not waiting.cancel() and (line := waiting.result()) is not None:
                    log.put_back(line)
                return
            line = waiting.result()
            if line is None:
                break
            await request.send_piece(line)
        await request.end()

    # ---- the rest

    async def delete(self, service: Service, request: Request) -> Response:
        session_ids = request.query_params.getlist("session_id")
        if not session_ids:
            raise unprocessable([{"type": "missing", "loc": ["query", "session_id"], "msg": "Field required"}])
        session_id, owner = session_ids[-1], _owner(request.caller)
        self._logs.forget((owner, session_id))
        with contextlib.suppress(NotFound):
            await service.engine.sessions.close(owner, _session_key(session_id))
        return Answer({"status": "success"})

    async def list_tools(self, service: Service, request: Request) -> Response:
        """Every agent has the same tools."""
        tools = service.engine.tools
        allowed = set(_tools(service, request.caller))
        specs = [] if tools is None else [spec.as_json() for spec in tools.specs if spec.name in allowed]
        return Answer(specs)

    async def call_tool(self, service: Service, request: Request) -> Response:
        caller = request.caller
        caller.count_request()
        name = request.path_params["name"].replace("-", "_")
        tools = service.engine.tools
        body = await request.body()
        if tools is None or name not in _tools(service, caller):
            raise Refusal(404, "not_found", "Tool not found")
        arguments = await read_whole(dict[str, Any], body or b"{}")
        try:
            answer = {"status": True, "result": await tools.call(name, arguments)}
        except ToolFailed as error:
            answer = {"status": False, "result": error.message}
        return Answer(answer)

    async def put_item(self, service: Service, request: Request) -> Response:
        put = await read_whole(PutBody, await request.body())
        try:
            flag = self._put(service, request.caller, put)
        except NotFound:
            raise Refusal(500, "not_found", f"there is no session {put.session_id[:100]!r}") from None
        return Answer({"session_id": put.session_id, "flag": flag})

    async def put_items(self, service: Service, request: Request) -> Response:
        """The body has one object per line."""
        body = await request.body()
        if len(body) > AT_ONCE_BYTES:
            await check(body)
        lines = body.split(b"\n", _LINES_MAX)
        count, errors = 0, []
        for number, line in enumerate(lines[:_LINES_MAX], 1):
            if not line.strip():
                continue
            try:
                put = read_body(PutBody, line)
                self._put(service, request.caller, put)
                count += 1
            except NotFound:
                errors.append({"line": number, "error": f"there is no session {put.session_id[:100]!r}"})
            except Refusal as refusal:
                errors.append({"line": number, "error": str(refusal.details.get("detail"))})
        return Answer({"status": "ok", "processed_items": count, "errors": errors})

    def _put(self, service: Service, caller: Caller, put: PutBody) -> bool:
        key = _owner(caller), put.session_id
        if not self._logs.knows(key):
            service.engine.sessions.get(key[0], _session_key(put.session_id))
            return False  # the session exists, and nothing runs in the background
        return self._logs.put(key, encode_json(put.item) + b"\n")


def _owner(caller: Caller) -> str:
    """Sessions of this dialect are separate from the caller's sessions in the native API."""
    return f"xmaster {caller.owner}"


def _has_session(service: Service, caller: Caller, session_id: str) -> bool:
    try:
        service.engine.sessions.get(_owner(caller), _session_key(session_id))
    except NotFound:
        return False
    return True


def _session_key(session_id: str) -> str:
    """In the original any text is a session id; the engine's ids are short and plain."""
    return "x" + hashlib.sha256(session_id.encode("utf-8", "surrogatepass")).hexdigest()[:40]


def _tools(service: Service, caller: Caller) -> tuple[str, ...]:
    """The tools that this caller may use."""
    tools, allowed = service.engine.tools, caller.grants.tools
    if tools is None or not allowed:
        return ()
    names = (spec.name for spec in tools.specs)
    return tuple(names) if isinstance(allowed, bool) else tuple(name for name in names if name in allowed)


def _one_shot(service: Service, caller: Caller, submission: _Submission) -> Execution:
    code, tools = wrap_program(submission.code, _tools(service, caller))
    program = ExecutionRequest(code, limits=_output_limit(caller), timeout=_seconds(caller, submission), tools=tools)
    return admit(caller.settings, program, caller.name)


def _output_limit(caller: Caller) -> dict[str, float]:
    """The ceiling of the server: the original has no limit."""
    return {"output_kb": caller.settings.ceiling_limits.output_bytes / 1024}


def _seconds(caller: Caller, submission: _Submission) -> float:
    most = caller.settings.ceiling_limits.wall_seconds
    return most if submission.seconds is None else min(float(submission.seconds), most)


def _timed_out(seconds: float) -> str:
    return f"Execution timed out after {seconds:g} seconds"


_REASONS = {
    Status.OUT_OF_MEMORY: "Execution ran out of memory",
    Status.OUTPUT_LIMIT: "Execution wrote too much",
    Status.DENIED: "Execution did something that is not allowed",
    Status.CANCELLED: "Execution was cancelled",
}


def _describe(submission: _Submission, execution: Execution, outcome: Outcome) -> dict[str, Any]:
    output, error = outcome.stdout, outcome.stderr or None
    if error is not None and execution.code is submission.code:  # it ran as it is
        if outcome.status is Status.OK:  # a warning, of the compiler
            output, error = error + output, None
        else:
            error = read_traceback(error)
    if outcome.status is Status.TIMED_OUT:
        error = _timed_out(execution.limits.wall_seconds) if submission.seconds is not None else "Execution timed out"
    elif outcome.status in _REASONS:
        error = _REASONS[outcome.status]
    elif outcome.status is not Status.OK and error is None:
        how = f"signal {outcome.signal}" if outcome.signal else f"exit code {outcome.exit_code}"
        error = f"Execution ended with {how}"
    if outcome.stdout_cut or outcome.stderr_cut:
        output += f"\n{cut_note(execution.limits)}\n"
    return {"output": output, "error": error, "execution_time": outcome.usage.wall_seconds}


async def _answer_healthy(service: Service, request: Request) -> Response:
    return Answer(b'{"status":"ok"}')


_routes = XMaster()

DIALECT = Dialect(
    name="xmaster",
    title="X-Master code server",
    port=30008,
    routes={
        "/execute": {"POST": _routes.execute},
        "/submit": {"POST": _routes.submit},
        "/get_mcp_result/{session_id:rest}": {"GET": _routes.stream},
        "/del_session": {"POST": _routes.delete},
        "/get_tool": {"GET": _routes.list_tools},
        "/get_tool/{agent}": {"GET": _routes.list_tools},
        "/call_tool/{name}": {"POST": _routes.call_tool},
        "/put_item": {"POST": _routes.put_item},
        "/stream_put_item": {"POST": _routes.put_items},
        "/health": {"GET": _answer_healthy},
    },
    refuse=refuse,
    open_to_all=frozenset({"/health"}),
)
