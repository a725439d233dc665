"""The wire behaviour of code_exec_server: /py_exec, /any_exec, /py_coverage, answered as plain text.

Its clients send thousands of requests at once, wait without a deadline, and treat every answer that they cannot parse
as a failed program. So a request that finds the queue full waits here instead of being refused, and other refusals have
the form `{"detail": …}`, which the clients raise as an error.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any
from weakref import WeakKeyDictionary

import msgspec
from msgspec import Struct
from starlette.responses import Response

from belljar.contract.errors import CallerError, Draining, Overloaded
from belljar.contract.execution import Execution, Outcome, Status, cut_note
from belljar.contract.request import ExecutionRequest
from belljar.engine.admission.request import admit
from belljar.engine.outcomes import new_id
from belljar.frontends.access.callers import Caller
from belljar.frontends.access.refusals import Refusal
from belljar.frontends.api.context import Service
from belljar.frontends.api.dialects.code_exec.hashed_tests import HashedTests
from belljar.frontends.api.dialects.code_exec.multipl_e import evaluate, find_evaluator
from belljar.frontends.api.request import Request, decode
from belljar.frontends.api.responses import Answer, encode_json
from belljar.frontends.api.routing import Dialect

_TEXT = "text/plain; charset=utf-8"
_QUEUE_SECONDS = 600.0  # how long a request waits for a full queue
_RETRY_SECONDS = 0.25
_SECONDS_MAX = 2**64 - 1


class Body(Struct):
    """The body of all three calls; unknown fields are ignored."""

    code: str
    timeout: int
    stdin: str | None = None
    lang: str | None = None
    json_resp: bool | None = None
    testhash: tuple[str, str] | None = None


class Wrapped(Struct):
    """The body of a client that has an EXECUTOR_AUTH."""

    args: Body


_decode = msgspec.json.Decoder(Body).decode
_decode_wrapped = msgspec.json.Decoder(Wrapped).decode


class CodeExec:
    """The routes, and the tests that requests named by hash."""

    def __init__(self) -> None:
        self._tests = HashedTests()

    async def run_python(self, service: Service, request: Request) -> Response:
        body, is_wrapped = await _read(request)
        if body is None:
            return _text("1\nInvalid JSON input")
        code = await self._with_test(service, body)
        if code is None:
            return _text("-1\nFailed to get test from test bank")
        status, text = await _run_python(service, request, body, code)
        if is_wrapped:
            inner = json.dumps({"output": text, "status": status})
            return _text(encode_json({"status": "SUCCESS", "result": {"result": inner}}))
        if body.json_resp:
            return _text(encode_json({"output": text, "status": status}))
        return _text(f"{status}\n{text}")

    async def _with_test(self, service: Service, body: Body) -> str | None:
        if body.testhash is None:
            return body.code
        directory = service.settings.server.hashed_tests_dir
        test = await asyncio.to_thread(self._tests.find, directory, *body.testhash)
        return None if test is None else f"{body.code}\n\n{test}"

    async def run_any(self, service: Service, request: Request) -> Response:
        body, _ = await _read(request)
        if body is None:
            return _text("1\nInvalid JSON input")
        if body.testhash is not None:
            return _text("-1\nTesthash is not supported for this endpoint")
        return _text(await _run_any(service, request, body))

    async def measure(self, service: Service, request: Request) -> Response:
        body, _ = await _read(request)
        if body is None:
            return _text("-1")
        percent = await _measure(service, request, body)
        return _text(encode_json({"coverage": percent}))

    async def run_wrapped(self, service: Service, request: Request) -> Response:
        """POST /, used by clients with an EXECUTOR_AUTH. Unlike GET /, it needs a key."""
        request.identify(service.callers)
        return await self.run_python(service, request)


async def _answer_alive(service: Service, request: Request) -> Response:
    """Clients check here whether a server runs: they wait forever unless they get 200 or 404."""
    return _text("OK")


async def _answer_healthy(service: Service, request: Request) -> Response:
    if service.health.trouble:
        raise Refusal(503, service.health.trouble, "no program can be run here at the moment")
    return _text("OK")


def _text(text: str | bytes) -> Response:
    return Answer(text.encode() if isinstance(text, str) else text, media_type=_TEXT)


async def _read(request: Request) -> tuple[Body | None, bool]:
    """The body, None if it is invalid; and whether it was wrapped."""
    request.caller.count_request()
    content = await request.body()
    try:
        found = await decode(content, _read_either, lambda found: found)
    except Refusal as refusal:
        if refusal.code != "not_json":
            raise
        found = None
    body = found.args if isinstance(found, Wrapped) else found
    if body is None or not 0 <= body.timeout <= _SECONDS_MAX:
        return None, False
    return body, isinstance(found, Wrapped)


def _read_either(content: bytes) -> Body | Wrapped | None:
    for read in (_decode, _decode_wrapped):
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return read(content)
    return None


async def _run_python(service: Service, request: Request, body: Body, code: str) -> tuple[int, str]:
    """The status, and standard output if the program succeeded, else standard error."""
    if body.timeout == 0:
        return 1, "Timeout"
    try:
        execution = _admit(request.caller, code, body.timeout, stdin=body.stdin or "")
        outcome = await _run(service, request, execution)
    except CallerError as error:
        return 1, error.message
    if outcome.status is Status.TIMED_OUT:
        return 1, "Timeout"
    if outcome.ok:
        return 0, outcome.stdout
    return 1, _note_cut(outcome.stderr, execution, was_cut=outcome.stderr_cut) + _reason(outcome)


def _note_cut(stderr: str, execution: Execution, *, was_cut: bool) -> str:
    """Standard error, with a note if it was cut. Standard output stays as it is: scores compare it."""
    if not was_cut:
        return stderr
    line_end = "\n" if stderr and not stderr.endswith("\n") else ""
    return f"{stderr}{line_end}{cut_note(execution.limits)}\n"


def _reason(outcome: Outcome) -> str:
    """In the original, programs reach their limits themselves and report that; here they are killed."""
    if outcome.status is Status.OUT_OF_MEMORY:
        return "MemoryError: the program was killed, it needed more memory than it may have\n"
    if outcome.status is Status.OUTPUT_LIMIT:
        return "the program was killed, it wrote far more than is kept\n"
    return ""


async def _run_any(service: Service, request: Request, body: Body) -> str:
    language, evaluator = find_evaluator(body.lang or "python")
    if body.timeout == 0:
        return "1\nTimeout"
    run_seconds = min(body.timeout, evaluator.run_seconds)
    options = {"language": language, "env": dict(evaluator.env) or None}
    try:
        execution = _admit(request.caller, evaluator.prepare(body.code), run_seconds, **options)
        outcome = await _run(service, request, execution)
    except CallerError as error:
        return f"1\n{error.message}"
    if outcome.status is Status.TIMED_OUT and body.timeout <= evaluator.run_seconds:
        return "1\nTimeout"  # the request's own timeout came first, so the evaluator never reported
    report = evaluate(evaluator, outcome)
    report["stderr"] = _note_cut(report["stderr"], execution, was_cut=outcome.stdout_cut or outcome.stderr_cut)
    return f"0\n{json.dumps(report)}\n"


async def _measure(service: Service, request: Request, body: Body) -> int:
    """The percentage, -1 if the program failed or could not be measured."""
    if body.timeout == 0:
        return -1
    try:
        execution = _admit(request.caller, body.code, body.timeout, coverage=True)
        outcome = await _run(service, request, execution)
    except CallerError:
        return -1
    if not outcome.ok or outcome.coverage is None:
        return -1
    percent = outcome.coverage.percent
    return int(percent) if percent in (0.0, 100.0) else min(max(round(percent), 1), 99)  # as coverage.py rounds


def _admit(caller: Caller, code: str, timeout: int, **options: Any) -> Execution:
    """The requested time up to the ceiling, and as much output as the ceiling allows."""
    ceiling = caller.settings.ceiling_limits
    program = ExecutionRequest(
        code if code.strip() else "#",  # an empty program does nothing
        limits={"wall_seconds": min(timeout, ceiling.wall_seconds), "output_kb": ceiling.output_bytes / 1024},
        **options,
    )
    return admit(caller.settings, program, caller.name)


async def _run(service: Service, request: Request, execution: Execution) -> Outcome:
    """Run a program once there is a slot, however long that takes; a client that leaves gives up its place."""
    execution_id = new_id()
    has_left = asyncio.Event()

    def leave() -> None:
        has_left.set()
        service.engine.cancel(execution_id)

    request.on_hang_up(leave)
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + _QUEUE_SECONDS
    async with _gate(service, request.caller):
        while not has_left.is_set():
            try:
                with request.caller.running_up_to(1):
                    return await service.engine.run(execution, id=execution_id)
            except Draining:
                raise
            except Overloaded:
                if loop.time() > give_up_at:
                    raise
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(has_left.wait(), _RETRY_SECONDS)
    raise ConnectionError("the client left while its program waited")


_gates: WeakKeyDictionary[Caller, asyncio.Semaphore] = WeakKeyDictionary()


def _gate(service: Service, caller: Caller) -> asyncio.Semaphore:
    """Let one caller's thousands of requests wait here, so that few of them retry at a full queue."""
    gate = _gates.get(caller)
    if gate is None:
        room = max(1, service.settings.pool.max_queued // 4)
        most = caller.grants.max_concurrent
        gate = _gates[caller] = asyncio.Semaphore(room if most is None else min(room, most))
    return gate


def refuse(refusal: Refusal) -> Response:
    """The form that clients raise as an error, whichever call it was."""
    return Answer({"detail": refusal.message}, refusal.status, media_type=_TEXT)


_routes = CodeExec()

DIALECT = Dialect(
    name="code_exec",
    title="code_exec_server",
    port=8000,
    routes={
        "/py_exec": {"POST": _routes.run_python},
        "/any_exec": {"POST": _routes.run_any},
        "/py_coverage": {"POST": _routes.measure},
        "/health": {"GET": _answer_healthy},
        "/": {"GET": _answer_alive, "POST": _routes.run_wrapped},
    },
    refuse=refuse,
    open_to_all=frozenset({"/health", "/"}),
)
