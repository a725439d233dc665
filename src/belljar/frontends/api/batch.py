"""Many executions in one request: separate programs, or one program against many cases.

Everything is checked before anything runs. A batch runs as many executions at a time as there are slots; the rest waits
here, where it costs nothing and takes no place in the queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import UNSET

from belljar.aio import cancel_all
from belljar.contract.errors import CallerError, Draining, Overloaded, SandboxFault, TooLarge
from belljar.contract.execution import Execution, Outcome, Status, Usage
from belljar.engine.outcomes import new_id
from belljar.frontends.access.refusals import Refusal, refusal_of
from belljar.frontends.api.bodies import (
    CaseBody,
    Comparison,
    ExecuteBody,
    admit_body,
    read_batch,
)
from belljar.frontends.api.context import Service
from belljar.frontends.api.large_answers import LARGE, LATER, pieces_of
from belljar.frontends.api.request import Request, decode
from belljar.frontends.api.responses import JSON_TYPE, encode_json
from belljar.frontends.api.streaming import Stream
from belljar.frontends.api.verdicts import PASSED, judge_case

SKIPPED = "skipped"
NOT_RUN, NOT_KEPT = "not_run", "not_kept"  # it could not be run, or its answer could not be kept

_log = logging.getLogger("belljar.api")

_OF_CASES = ("cases", "compare", "stop_on_failure")
_RETRY_SECONDS_MAX = 60.0
_ADMITTED_BYTES = 32 * 1024  # a larger batch may hold so many executions that a thread checks them

_FREED_SECONDS = 0.2  # between two attempts to get memory that other executions of the same batch hold

Finish = Callable[[int, dict[str, Any], int], Awaitable[None]]  # number, result, and size of the result in memory


@dataclass(slots=True, kw_only=True)
class Batch:
    """What is to be run, and how each is judged."""

    executions: list[Execution]
    cases: list[CaseBody] | None = None
    compare: Comparison = "exact"
    stop_on_failure: bool = False
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    running: set[str] = field(default_factory=set)
    passed: int = 0
    failed: int = 0

    async def judge(self, index: int, outcome: Outcome) -> dict[str, Any]:
        """The result of one execution, counted."""
        body = outcome.as_json(LATER) if outcome.size_bytes > LARGE else outcome.as_json()
        if self.cases is None:
            verdict = PASSED if outcome.ok else str(outcome.status)
        else:
            verdict = body["verdict"] = await judge_case(self.cases[index], outcome, self.compare)
        if verdict == PASSED:
            self.passed += 1
        elif outcome.status is not Status.CANCELLED:
            self._count_failure()
        return body

    def refuse(self, error: CallerError) -> dict[str, Any]:
        """The result of an execution that only the engine could find to be invalid; counted."""
        self._count_failure()
        return {**refusal_of(error).as_json(), "verdict": NOT_RUN}

    def _count_failure(self) -> None:
        self.failed += 1
        if self.stop_on_failure:
            self.stopped.set()

    def skip(self, index: int) -> dict[str, Any]:
        """The result of an execution that was never started."""
        outcome = Outcome(
            id=new_id(),
            language=self.executions[index].language,
            status=Status.CANCELLED,
            exit_code=None,
            signal=None,
            stdout="",
            stderr="",
            stdout_cut=False,
            stderr_cut=False,
            error=None,
            displays=(),
            artifacts=(),
            usage=Usage(),
        )
        return {**outcome.as_json(), "verdict": SKIPPED}


async def run_batch(service: Service, request: Request) -> None:
    """POST /v1/batch."""
    request.caller.count_request()
    check = lambda body: _admit(service, request, body)  # noqa: E731
    batch = await decode(await request.json_body(), read_batch, check, _ADMITTED_BYTES)
    if (kind := request.wanted_stream()) is None:
        await _answer_whole(service, request, batch)
    else:
        await _answer_as_they_finish(service, request, batch, kind)


async def _answer_whole(service: Service, request: Request, batch: Batch) -> None:
    kept = _Kept(service, request, len(batch.executions))
    await _run_all(service, request, batch, kept.add, kept.refuse)
    await kept.send({"passed": batch.passed, "failed": batch.failed})


class _Kept:
    """The results of a batch that is answered as a whole, encoded as they arrive to save memory."""

    def __init__(self, service: Service, request: Request, count: int) -> None:
        self._request = request
        self._most_bytes = min(service.settings.server.batch_bytes, service.memory.all_bytes // 4)
        self._bytes = 0
        self._is_full = False
        self._results: list[Sequence[bytes]] = [()] * count

    def refuse(self) -> dict[str, Any] | None:
        """The result of an execution that is not run because no more results can be kept; None while they can."""
        if not self._is_full and self._bytes < self._most_bytes:
            return None
        return {**refusal_of(self._too_much()).as_json(), "verdict": NOT_RUN}

    async def add(self, index: int, result: dict[str, Any], size: int) -> None:
        """Keep a result; replace one that does not fit by an error."""
        if size <= LARGE:
            pieces = [encode_json(result)]
        elif self._bytes + size > self._most_bytes:
            self._is_full = True
            pieces = [encode_json({**refusal_of(self._too_much()).as_json(), "verdict": NOT_KEPT})]
        else:
            self._count(size)  # before the first await: other executions finish meanwhile
            pieces = []
            for piece in pieces_of(result):
                pieces.append(piece)
                await asyncio.sleep(0)
            self._count(-size)
        self._count(sum(map(len, pieces)))
        self._results[index] = pieces

    def _count(self, size: int) -> None:
        self._bytes += size
        self._request.keep(size)

    def _too_much(self) -> TooLarge:
        return TooLarge(
            f"the results of this batch are over the {self._most_bytes:,} bytes that are kept for one answer "
            "(server.batch_bytes); request a stream (Accept: application/x-ndjson), or send smaller batches",
            max=self._most_bytes,
        )

    async def send(self, rest: dict[str, Any]) -> None:
        """Answer, and drop each result once it is sent."""
        tail = b"]," + encode_json(rest)[1:]
        length = self._bytes + max(0, len(self._results) - 1) + len(b'{"results":[') + len(tail)
        await self._request.begin(JSON_TYPE, (b"content-length", b"%d" % length))
        await self._request.send_pieces(self._joined(tail))
        await self._request.end()

    def _joined(self, tail: bytes) -> Iterator[bytes]:
        """The answer in pieces large enough for a write each."""
        unsent = bytearray(b'{"results":[')
        for index, pieces in enumerate(self._results):
            self._results[index] = ()
            for piece in pieces:
                unsent += piece
                if len(unsent) > LARGE:
                    yield bytes(unsent)
                    unsent.clear()
            if index < len(self._results) - 1:
                unsent += b","
        yield bytes(unsent) + tail


async def _answer_as_they_finish(service: Service, request: Request, batch: Batch, kind: bytes) -> None:
    stream = Stream(request, kind)
    one_at_a_time = asyncio.Lock()

    async def finish(index: int, result: dict[str, Any], size: int) -> None:
        event = {"event": "result", "index": index, **result}
        if size <= LARGE:
            async with one_at_a_time:
                await stream.send(event)
            return
        request.keep(size)
        try:
            async with one_at_a_time:
                await stream.send_large(event)
        finally:
            request.let_go(size)

    try:
        await _run_all(service, request, batch, finish)
    except ConnectionError:
        raise  # the client has left
    except Exception as error:  # the status is sent; the error can only be part of the stream
        if not stream.has_begun:
            raise
        await stream.send({"event": "error", **service.refuse(error).as_json()})
    else:
        await stream.send({"event": "finished", "passed": batch.passed, "failed": batch.failed})
    await request.end()


async def _run_all(
    service: Service,
    request: Request,
    batch: Batch,
    finish: Finish,
    refuse: Callable[[], dict[str, Any] | None] = lambda: None,
) -> None:
    """Run some workers, each taking the next execution, until none is left."""
    waiting = iter(range(len(batch.executions)))

    def give_up() -> None:
        batch.stopped.set()
        for each in list(batch.running):
            service.engine.cancel(each)

    async def work() -> None:
        for index in waiting:
            size = 0
            if batch.stopped.is_set():
                result = batch.skip(index)
            elif (refused := refuse()) is not None:
                result = refused
            else:
                result, size = await _run_one(service, batch, index)
                if batch.stopped.is_set():
                    give_up()
            await finish(index, result, size)

    request.on_hang_up(give_up)
    # A worker that frees a slot takes it again at once, unless another caller waits for it. More workers than slots
    # would wait for each other, which costs every execution an iteration of the event loop.
    wanted = min(len(batch.executions), service.settings.pool.max_running)
    with request.caller.running_up_to(wanted) as width:
        workers = [asyncio.create_task(work()) for _ in range(width)]
        try:
            await asyncio.gather(*workers)
        finally:
            await cancel_all(workers)


async def _run_one(service: Service, batch: Batch, index: int) -> tuple[dict[str, Any], int]:
    """The result of one execution and its size. Its errors are its result; a shortage is waited out.

    Raises:
        Overloaded: the shortage lasted too long.
    """
    execution = batch.executions[index]
    waited_seconds = 0.0
    while True:
        execution_id = new_id()
        batch.running.add(execution_id)
        try:
            outcome = await service.engine.run(execution, id=execution_id)
        except Draining:
            raise
        except Overloaded as error:
            if waited_seconds >= _RETRY_SECONDS_MAX:
                raise
            others_run = len(batch.running) > 1
            seconds = _FREED_SECONDS if others_run else error.retry_after_seconds
            batch.running.discard(execution_id)
            with contextlib.suppress(TimeoutError):  # not stopped meanwhile: try again
                await asyncio.wait_for(batch.stopped.wait(), seconds)
                return batch.skip(index), 0
            waited_seconds += 0.0 if others_run else seconds
        except SandboxFault as error:
            _log.error("execution %s of a batch could not be run: %s", execution_id, error, exc_info=error)
            service.health.check_soon()
            return {**refusal_of(error).as_json(), "verdict": NOT_RUN}, 0
        except CallerError as error:
            return batch.refuse(error), 0
        else:
            return await batch.judge(index, outcome), outcome.size_bytes
        finally:
            batch.running.discard(execution_id)


def _admit(service: Service, request: Request, body: msgspec.Struct) -> Batch:
    given = {name: value for name in body.__struct_fields__ if (value := getattr(body, name)) is not UNSET}
    for name in ("executions", "cases"):
        if len(given.get(name, ())) > (most := service.settings.server.batch_executions):
            count = len(given[name])
            raise TooLarge(f"{name}: {count:,} are more than the {most:,} taken in one batch; send several", max=most)
    if "executions" in given:
        others = [name for name in given if name != "executions"]
        if others:
            advice = (
                "leave it out: it goes with code and cases" if others[0] in _OF_CASES else "move it into each of them"
            )
            raise _invalid(f"{others[0]} cannot stand beside executions; {advice}", others[0])
        bodies, batch = given["executions"], Batch(executions=[])
    elif "code" in given and "cases" in given:
        cases = given["cases"]
        program = ExecuteBody(**{name: value for name, value in given.items() if name not in _OF_CASES})
        bodies = [_with_case(program, case) for case in cases]
        judged = {name: given[name] for name in ("compare", "stop_on_failure") if name in given}
        batch = Batch(executions=[], cases=cases, **judged)
    else:
        raise _invalid("send either executions, or code and cases", "cases" if "code" in given else "executions")
    name = "executions" if batch.cases is None else "cases"
    if not bodies:
        raise _invalid(f"{name} is empty; send at least one", name)
    if batch.cases is None:
        batch.executions = [_admit_one(request, name, at, body) for at, body in enumerate(bodies)]
    else:
        batch.executions = _admit_cases(request, bodies)
    return batch


def _admit_cases(request: Request, bodies: list[ExecuteBody]) -> list[Execution]:
    """Files are decoded with the first case, and shared by all."""
    first = _admit_one(request, "cases", 0, bodies[0])
    bare = (msgspec.structs.replace(body, files=[]) for body in bodies[1:])
    others = (_admit_one(request, "cases", at, body) for at, body in enumerate(bare, 1))
    return [first, *(dataclasses.replace(each, files=first.files) for each in others)]


def _admit_one(request: Request, name: str, at: int, body: ExecuteBody) -> Execution:
    try:
        return admit_body(request.caller, body)
    except CallerError as error:
        refusal = refusal_of(error)
        inner = refusal.details.get("field")
        place = f"{name}[{at}]" + (f".{inner}" if inner else "")
        details = {**refusal.details, "field": place, "index": at}
        raise Refusal(refusal.status, refusal.code, f"{name}[{at}]: {refusal.message}", details) from None


def _with_case(program: ExecuteBody, case: CaseBody) -> ExecuteBody:
    changed = {name: value for name in ("stdin", "args") if (value := getattr(case, name)) is not UNSET}
    return msgspec.structs.replace(program, **changed)


def _invalid(message: str, field: str) -> Refusal:
    return Refusal(422, "invalid_request", message, {"field": field})
