"""The wire behaviour of X-Master's code server: /execute, /submit and its result stream, tools as plain names.

A request without a session id is a run of its own, and still answers "test_id": the original lets all such callers
share one namespace. A session id is its caller's own.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import parse_qs

from msgspec import UNSET, Struct, UnsetType

from belljar.contract.errors import BelljarError, NotFound, ToolFailed
from belljar.contract.execution import Event, Execution, Finished, Outcome, Status, ToolAnswered, ToolCalled, cut_note
from belljar.contract.request import CellRequest, ExecutionRequest, SessionRequest
from belljar.contract.sessions import SessionState
from belljar.engine.admission.request import admit, admit_cell, admit_session
from belljar.engine.outcomes import new_id
from belljar.frontends.access.callers import Caller
from belljar.frontends.api.context import Service
from belljar.frontends.api.dialects.fastapi import read_body, read_whole, refuse, unprocessable
from belljar.frontends.api.dialects.xmaster.background_jobs import Backlog
from belljar.frontends.api.dialects.xmaster.event_log import Feed, Feeds, make_line
from belljar.frontends.api.dialects.xmaster.wrapping import (
    NOBODY,
    open_session,
    read_traceback,
    wrap_cell,
    wrap_program,
)
from belljar.frontends.api.large_bodies import check, decode
from belljar.frontends.api.request import Request
from belljar.frontends.api.responses import NO_SNIFFING, Refusal, encode_json, reply
from belljar.frontends.api.routing import Dialect

_WAIT_SECONDS = 600.0  # for a run to read about
_LINES_MAX = 10_000


class ExecuteBody(Struct):
    """Of /execute and /submit."""

    code: str
    timeout: int | None = 180
    session_id: str | UnsetType = UNSET
    #: Of other servers' requests to the same paths: E2B's, and SandboxFusion's.
    context_id: Any = UNSET
    env_vars: Any = UNSET
    dataset: Any = UNSET


class PutBody(Struct):
    """Of /put_item, and of each line of /stream_put_item."""

    session_id: str
    item: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Submission:
    """One piece of code to run, and where."""

    code: str
    seconds: int | None
    session_id: str | None  # None: nowhere in particular
    key: str  # of the session

    @property
    def shown_id(self) -> str:
        return NOBODY if self.session_id is None else self.session_id


def _read(body: bytes) -> ExecuteBody:
    return read_body(ExecuteBody, body)


def _understand(asked: ExecuteBody) -> _Submission:
    for name, server in (("context_id", "E2B"), ("env_vars", "E2B"), ("dataset", "SandboxFusion")):
        if getattr(asked, name) is not UNSET:
            raise Refusal(404, "not_found", f"{name} is a field of {server}'s API, which is not served here")
    if not asked.code.strip():
        raise Refusal(400, "blank", "Code cannot be empty")
    session_id = None if asked.session_id is UNSET else asked.session_id
    key = "" if session_id is None else _session_key(session_id)
    return _Submission(code=asked.code, seconds=asked.timeout, session_id=session_id, key=key)


class XMaster:
    """The routes, and what background runs have to tell."""

    def __init__(self) -> None:
        self._feeds = Feeds()
        self._backlog = Backlog()

    # ---- running

    async def execute(self, service: Service, request: Request) -> None:
        """POST /execute."""
        caller = request.caller
        caller.count_request()
        asked = await decode(await request.read(is_json=False), _read, _understand)
        with caller.running_up_to(1):
            answer = await self._run(service, request, asked)
        await reply(request.send, encode_json({**answer, "session_id": asked.shown_id}))

    async def _run(self, service: Service, request: Request, asked: _Submission) -> dict[str, Any]:
        caller, execution_id = request.caller, new_id()
        if asked.seconds is not None and asked.seconds <= 0:
            return {"output": "", "error": _timed_out(asked.seconds), "execution_time": 0.0}
        if asked.session_id is None:
            execution = _one_shot(service, caller, asked)
            request.on_hang_up(lambda: service.engine.cancel(execution_id))
            outcome = await service.engine.run(execution, id=execution_id)
        else:
            execution = await request.while_connected(self._cell(service, caller, asked))
            running = service.engine.sessions.run(_owner(caller), asked.key, execution, execution_id=execution_id)
            try:
                outcome = await request.while_connected(running)
            except ConnectionError:
                service.telemetry.left_cell(caller.name, asked.key, execution, execution_id)
                raise
        _count(service, caller, asked, execution, outcome)
        return _describe(asked, execution, outcome)

    async def _cell(self, service: Service, caller: Caller, asked: _Submission) -> Execution:
        """A cell of the session, which is opened if it is not there."""
        assert asked.session_id is not None
        try:
            state = service.engine.sessions.get(_owner(caller), asked.key)
        except NotFound:
            state = await self._find_or_open(service, caller, asked.key, asked.session_id)
        cell = CellRequest(wrap_cell(asked.code), limits=_output_limit(caller), timeout=_seconds(caller, asked))
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

    async def submit(self, service: Service, request: Request) -> None:
        """POST /submit."""
        caller = request.caller
        caller.count_request()
        body = await request.read(is_json=False)
        asked = await decode(body, _read, _understand)
        with contextlib.ExitStack() as held:
            held.enter_context(caller.running_up_to(1))
            held.enter_context(self._backlog.room(service.settings, caller.name, len(body)))
            feed = self._feeds.new((_owner(caller), asked.shown_id))
            self._backlog.start(self._run_told(service, caller, asked, feed), held.pop_all())
        await reply(request.send, encode_json({"status": "success", "session_id": asked.shown_id}))

    async def _run_told(self, service: Service, caller: Caller, asked: _Submission, feed: Feed) -> None:
        feed.put(make_line("tool_result", "start"))
        said = ""
        try:
            answer = await self._stream_run(service, caller, asked, feed)
            said = answer["error"] or answer["output"]
        except BelljarError as error:
            said = error.message
        finally:
            feed.end(make_line("code_result", "running", content=said), make_line("tool_result", "end"))

    async def _stream_run(self, service: Service, caller: Caller, asked: _Submission, feed: Feed) -> dict[str, Any]:
        if asked.seconds is not None and asked.seconds <= 0:
            return {"output": "", "error": _timed_out(asked.seconds)}
        events: AsyncGenerator[Event, None]
        if asked.session_id is None:
            execution = _one_shot(service, caller, asked)
            events = service.engine.stream(execution)
        else:
            execution = await self._cell(service, caller, asked)
            events = service.engine.sessions.stream(_owner(caller), asked.key, execution)
        async with contextlib.aclosing(events):
            async for event in events:
                if isinstance(event, ToolCalled):
                    feed.put(make_line("tool_result", "running", {"tool_name": event.tool}))
                    called: dict[str, Any] = {"call_tool": event.tool, "call_args": dict(event.arguments)}
                    feed.put(make_line("tool_result", "running", called))
                elif isinstance(event, ToolAnswered):
                    answer = {"tool_result": event.result, "tool_elapsed_time": event.call.seconds}
                    told = {event.call.tool: answer if event.call.ok else None}
                    feed.put(make_line("tool_result", "running", told))
                elif isinstance(event, Finished):
                    _count(service, caller, asked, execution, event.outcome)
                    return _describe(asked, execution, event.outcome)
        raise AssertionError("a stream ends with its outcome")

    async def stream(self, service: Service, request: Request) -> None:
        """GET /get_mcp_result/{session_id}."""
        key = _owner(request.caller), request.parameters["session_id"]
        if not self._feeds.knows(key) and not _has_session(service, request.caller, key[1]):
            raise Refusal(404, "not_found", "Session not found")
        await request.read(is_json=False)
        line = self._feeds.touch(key)
        reading = asyncio.ensure_future(self._feeds.take(key))
        gone = asyncio.ensure_future(request.receive())
        feed: Feed | None = None
        try:
            await asyncio.wait([reading, gone], timeout=_WAIT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                raise Refusal(404, "not_found", "Session not found")
            feed = reading.result()
            line.read.add(feed)
            await self._send_all(request, feed, gone)
        finally:
            for each in (reading, gone):
                each.cancel()
            if feed is not None:
                line.put_back(feed)

    async def _send_all(self, request: Request, feed: Feed, gone: asyncio.Future[Any]) -> None:
        head = [(b"content-type", b"application/json"), (b"cache-control", b"no-store"), NO_SNIFFING]
        await request.send({"type": "http.response.start", "status": 200, "headers": head})
        while True:
            waiting = asyncio.ensure_future(feed.next())
            await asyncio.wait([waiting, gone], return_when=asyncio.FIRST_COMPLETED)
            if gone.done():
                if not waiting.cancel() and (line := waiting.result()) is not None:
                    feed.put_back(line)
                return
            line = waiting.result()
            if line is None:
                break
            await request.send({"type": "http.response.body", "body": line, "more_body": True})
        await request.send({"type": "http.response.body", "body": b""})

    # ---- the rest

    async def delete(self, service: Service, request: Request) -> None:
        """POST /del_session?session_id=X."""
        given = parse_qs(request.scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)
        if "session_id" not in given:
            raise unprocessable([{"type": "missing", "loc": ["query", "session_id"], "msg": "Field required"}])
        session_id, owner = given["session_id"][-1], _owner(request.caller)
        self._feeds.forget((owner, session_id))
        with contextlib.suppress(NotFound):
            await service.engine.sessions.close(owner, _session_key(session_id))
        await reply(request.send, encode_json({"status": "success"}))

    async def list_tools(self, service: Service, request: Request) -> None:
        """GET /get_tool and /get_tool/{agent}; every agent has the same."""
        tools = service.engine.tools
        allowed = set(_tools(service, request.caller))
        specs = [] if tools is None else [spec.as_json() for spec in tools.specs if spec.name in allowed]
        await reply(request.send, encode_json(specs))

    async def call_tool(self, service: Service, request: Request) -> None:
        """POST /call_tool/{name}."""
        caller = request.caller
        caller.count_request()
        name = request.parameters["name"].replace("-", "_")
        tools = service.engine.tools
        body = await request.read(is_json=False)
        if tools is None or name not in _tools(service, caller):
            raise Refusal(404, "not_found", "Tool not found")
        arguments = await read_whole(dict[str, Any], body or b"{}")
        try:
            answer = {"status": True, "result": await tools.call(name, arguments)}
        except ToolFailed as error:
            answer = {"status": False, "result": error.message}
        await reply(request.send, encode_json(answer))

    async def put_item(self, service: Service, request: Request) -> None:
        """POST /put_item."""
        asked = await read_whole(PutBody, await request.read(is_json=False))
        try:
            flag = self._put(service, request.caller, asked)
        except NotFound:
            raise Refusal(500, "not_found", f"there is no session {asked.session_id[:100]!r}") from None
        await reply(request.send, encode_json({"session_id": asked.session_id, "flag": flag}))

    async def put_items(self, service: Service, request: Request) -> None:
        """POST /stream_put_item: one object per line."""
        body = await request.read(is_json=False)
        await check(body)
        lines = body.split(b"\n", _LINES_MAX)
        count, errors = 0, []
        for number, line in enumerate(lines[:_LINES_MAX], 1):
            if not line.strip():
                continue
            try:
                asked = read_body(PutBody, line)
                self._put(service, request.caller, asked)
                count += 1
            except NotFound:
                errors.append({"line": number, "error": f"there is no session {asked.session_id[:100]!r}"})
            except Refusal as refusal:
                errors.append({"line": number, "error": str(refusal.details.get("detail"))})
        await reply(request.send, encode_json({"status": "ok", "processed_items": count, "errors": errors}))

    def _put(self, service: Service, caller: Caller, asked: PutBody) -> bool:
        key = _owner(caller), asked.session_id
        if not self._feeds.knows(key):
            service.engine.sessions.get(key[0], _session_key(asked.session_id))
            return False  # it is there, and nothing runs in the background
        return self._feeds.put(key, encode_json(asked.item) + b"\n")


def _owner(caller: Caller) -> str:
    """Sessions of this dialect are their caller's, and apart from those of our own API."""
    return f"xmaster {caller.owner}"


def _has_session(service: Service, caller: Caller, session_id: str) -> bool:
    try:
        service.engine.sessions.get(_owner(caller), _session_key(session_id))
    except NotFound:
        return False
    return True


def _session_key(session_id: str) -> str:
    """Any text is a session id there; ours are short and plain."""
    return "x" + hashlib.sha256(session_id.encode("utf-8", "surrogatepass")).hexdigest()[:40]


def _tools(service: Service, caller: Caller) -> tuple[str, ...]:
    """The names of all tools that this caller may use."""
    tools, allowed = service.engine.tools, caller.key.tools
    if tools is None or not allowed:
        return ()
    names = (spec.name for spec in tools.specs)
    return tuple(names) if isinstance(allowed, bool) else tuple(name for name in names if name in allowed)


def _one_shot(service: Service, caller: Caller, asked: _Submission) -> Execution:
    code, tools = wrap_program(asked.code, _tools(service, caller))
    program = ExecutionRequest(code, limits=_output_limit(caller), timeout=_seconds(caller, asked), tools=tools)
    return admit(caller.settings, program, caller.name)


def _count(service: Service, caller: Caller, asked: _Submission, execution: Execution, outcome: Outcome) -> None:
    if asked.session_id is None:
        service.executed(execution, outcome)
    else:
        service.health.ran()
        service.telemetry.ran_cell(caller.name, asked.key, execution, outcome)


def _output_limit(caller: Caller) -> dict[str, float]:
    """All that this server gives: there is none in the original."""
    return {"output_kb": caller.settings.ceiling_limits.output_bytes / 1024}


def _seconds(caller: Caller, asked: _Submission) -> float:
    most = caller.settings.ceiling_limits.wall_seconds
    return most if asked.seconds is None else min(float(asked.seconds), most)


def _timed_out(seconds: float) -> str:
    return f"Execution timed out after {seconds:g} seconds"


_REASONS = {
    Status.OUT_OF_MEMORY: "Execution ran out of memory",
    Status.OUTPUT_LIMIT: "Execution wrote too much",
    Status.DENIED: "Execution did something that is not allowed",
    Status.CANCELLED: "Execution was cancelled",
}


def _describe(asked: _Submission, execution: Execution, outcome: Outcome) -> dict[str, Any]:
    output, error = outcome.stdout, outcome.stderr or None
    if error is not None and execution.code is asked.code:  # it ran as it is
        if outcome.status is Status.OK:  # a warning, of the compiler
            output, error = error + output, None
        else:
            error = read_traceback(error)
    if outcome.status is Status.TIMED_OUT:
        error = _timed_out(execution.limits.wall_seconds) if asked.seconds is not None else "Execution timed out"
    elif outcome.status in _REASONS:
        error = _REASONS[outcome.status]
    elif outcome.status is not Status.OK and error is None:
        how = f"signal {outcome.signal}" if outcome.signal else f"exit code {outcome.exit_code}"
        error = f"Execution ended with {how}"
    if outcome.stdout_cut or outcome.stderr_cut:
        output += f"\n{cut_note(execution.limits)}\n"
    return {"output": output, "error": error, "execution_time": outcome.usage.wall_seconds}


async def _answer_healthy(service: Service, request: Request) -> None:
    await reply(request.send, b'{"status":"ok"}')


_routes = XMaster()

DIALECT = Dialect(
    name="xmaster",
    title="X-Master code server",
    port=30008,
    routes={
        "/execute": {"POST": _routes.execute},
        "/submit": {"POST": _routes.submit},
        "/get_mcp_result/{session_id*}": {"GET": _routes.stream},
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
