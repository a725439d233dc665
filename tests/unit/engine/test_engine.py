"""The engine, with real programs in real jails: outcomes, queueing, cancelling, closing, streams."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from belljar.contract.errors import Draining, InvalidExecution, QueueFull, UnknownEnvironment
from belljar.contract.execution import Event, Execution, Finished, Limits, Outcome, Output, Started, Status
from belljar.engine.engine import Engine
from belljar.engine.streams import UNREAD_BYTES_MAX

OpenEngine = Callable[..., contextlib.AbstractAsyncContextManager[Engine]]

FOREVER = "import time\nwhile True: time.sleep(1)"


def marked(code: str = "import time; time.sleep(1000)") -> tuple[str, str]:
    """A program that becomes a process the host can recognise, and the mark to recognise it by."""
    mark = f"belljar-test-{secrets.token_hex(8)}"
    return f"import os, sys\nprint('up', flush=True)\nos.execv(sys.executable, [{mark!r}, '-c', {code!r}])", mark


def is_alive(mark: str) -> bool:
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if mark.encode() in process.read_bytes():
                return True
    return False


async def until_stuck(mark: str, seconds: float = 20.0) -> None:
    """Return once the marked process keeps sleeping, as it does when its output is not read."""
    asleep = 0
    async with asyncio.timeout(seconds):
        while asleep < 20:
            asleep = asleep + 1 if state_of(mark) == "S" else 0
            await asyncio.sleep(0.01)


def state_of(mark: str) -> str:
    """Return the kernel's state letter of the marked process; empty if there is no such process."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark.encode() in (process / "cmdline").read_bytes():
                return (process / "stat").read_text().rpartition(")")[2].split()[0]
    return ""


async def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def running(engine: Engine, code: str, **fields: Any) -> AsyncIterator[asyncio.Task[Outcome]]:
    """Start a task that runs `code`; return it once it holds a slot."""
    before = engine.facts()["running"]
    task = asyncio.create_task(engine.run(Execution(code=code), **fields))
    await until(lambda: engine.facts()["running"] > before)
    yield task


def test_an_outcome_has_an_unguessable_id_and_the_programs_output(open_engine: OpenEngine) -> None:
    async def scene() -> None:
        async with open_engine() as engine:
            first, second = [await engine.run(Execution(code="print('hi')")) for _ in range(2)]
            assert (first.status, first.exit_code, first.signal, first.stdout) == (Status.OK, 0, None, "hi\n")
            assert first.id.startswith("x_")
            assert len(first.id) == 34
            assert first.id != second.id
            assert first.usage.wall_seconds == round(first.usage.wall_seconds, 6) > 0, "told in microseconds"
            assert first.error is None

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("code", "status", "exit_code", "signal", "error_type"),
    [
        pytest.param("1/0", Status.FAILED, 1, None, "ZeroDivisionError", id="exception"),
        pytest.param("a b", Status.FAILED, 1, None, "SyntaxError", id="syntax_error"),
        pytest.param("import sys; sys.exit(1)", Status.FAILED, 1, None, None, id="exit_1"),
        pytest.param("import sys; sys.exit(3)", Status.FAILED, 3, None, None, id="exit_3"),
        pytest.param("import os; os.kill(os.getpid(), 9)", Status.CRASHED, None, "SIGKILL", None, id="killed"),
        pytest.param("import os; os.kill(os.getpid(), 40)", Status.CRASHED, None, "SIGRTMIN+6", None, id="real_time"),
        pytest.param("import os; os.kill(os.getpid(), 32)", Status.CRASHED, None, "SIG32", None, id="nameless"),
        pytest.param("import os; os.abort()", Status.CRASHED, None, "SIGABRT", None, id="abort"),
    ],
)
def test_the_end_of_a_program_is_reported(
    open_engine: OpenEngine,
    code: str,
    status: Status,
    exit_code: int | None,
    signal: str | None,
    error_type: str | None,
) -> None:
    async def scene() -> Outcome:
        async with open_engine() as engine:
            return await engine.run(Execution(code=code))

    outcome = asyncio.run(scene())
    assert (outcome.status, outcome.exit_code, outcome.signal) == (status, exit_code, signal)
    assert (outcome.error and outcome.error.type) == error_type


def test_an_exception_is_parsed_from_truncated_output(open_engine: OpenEngine) -> None:
    code = "import sys\nfor at in range({}): print('progress', at, file=sys.stderr)\n{{}}['gone']"

    async def scene() -> list[Outcome]:
        async with open_engine() as engine:
            limits = Limits(output_bytes=4096)
            return [await engine.run(Execution(code=code.format(lines), limits=limits)) for lines in (400, 20_000)]

    for outcome in asyncio.run(scene()):
        assert outcome.stderr_cut
        assert outcome.stderr.startswith("progress 0\n")
        assert outcome.error is not None
        assert (outcome.error.type, outcome.error.message) == ("KeyError", "'gone'")


def test_invalid_utf_8_is_replaced_and_truncation_splits_no_character(open_engine: OpenEngine) -> None:
    async def scene() -> None:
        async with open_engine() as engine:
            broken = await engine.run(Execution(code=r"import os; os.write(1, b'a\xffb\xc3')"))
            assert broken.stdout == "a\ufffdb\ufffd"
            cut = await engine.run(Execution(code="print('ü' * 100)", limits=Limits(output_bytes=11)))
            assert (cut.stdout, cut.stdout_cut, cut.status) == ("ü" * 5, True, Status.OK)

    asyncio.run(scene())


def test_an_exception_that_was_cut_off_is_not_mistaken_for_an_earlier_one(open_engine: OpenEngine) -> None:
    async def scene() -> None:
        code = """
import sys, traceback
try:
    [][0]
except IndexError:
    traceback.print_exc()
print("x" * 2000, file=sys.stderr)
1/0
"""
        async with open_engine() as engine:
            whole = await engine.run(Execution(code=code))
            assert whole.error is not None
            assert whole.error.type == "ZeroDivisionError"
            cut = await engine.run(Execution(code=code, limits=Limits(output_bytes=1000)))
            assert (cut.status, cut.error, cut.stderr_cut) == (Status.FAILED, whole.error, True)

    asyncio.run(scene())


def test_running_and_waiting_programs_are_limited(open_engine: OpenEngine) -> None:
    async def scene() -> None:
        async with open_engine(max_running=1, max_queued=1) as engine, running(engine, FOREVER, id="first") as first:
            second = asyncio.create_task(engine.run(Execution(code="print(2)")))
            await until(lambda: engine.facts()["queued"] == 1)
            with pytest.raises(QueueFull) as refused:
                await engine.run(Execution(code="print(3)"))
            assert refused.value.retry_after_seconds >= 1
            engine.cancel("first")
            assert (await first).status is Status.CANCELLED
            outcome = await second
            assert (outcome.stdout, outcome.status) == ("2\n", Status.OK)
            assert outcome.usage.queue_seconds > 0

    asyncio.run(scene())


def test_cancelling_the_task_ends_the_program(open_engine: OpenEngine) -> None:
    async def scene() -> None:
        code, mark = marked()
        async with open_engine() as engine, running(engine, code) as task:
            await until(lambda: is_alive(mark))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert not is_alive(mark)
            assert engine.facts()["running"] == 0
            assert (await engine.run(Execution(code="print(1)"))).ok

    asyncio.run(scene())


def test_cancelling_by_id_gives_an_outcome_and_leaves_the_task_as_it_was(open_engine: OpenEngine) -> None:
    async def scene() -> None:
        code, mark = marked()

        async def ask(engine: Engine) -> Outcome:
            outcome = await engine.run(Execution(code=code), id="mine")
            task = asyncio.current_task()
            assert task is not None
            assert task.cancelling() == 0
            await asyncio.sleep(0)  # a leftover cancellation would be raised here
            return outcome

        async with open_engine() as engine:
            task = asyncio.create_task(ask(engine))
            await until(lambda: is_alive(mark))
            assert engine.cancel("mine")
            assert engine.cancel("mine"), "asking twice is harmless"
            outcome = await task
            assert (outcome.status, outcome.id) == (Status.CANCELLED, "mine")
            assert not is_alive(mark)
            assert not engine.cancel("mine")

    asyncio.run(scene())


def test_cancelling_by_id_reaches_a_waiting_run(open_engine: OpenEngine) -> None:
    async def scene() -> None:
        async with open_engine(max_running=1) as engine, running(engine, FOREVER, id="first") as first:
            second = asyncio.create_task(engine.run(Execution(code="print(2)"), id="second"))
            await until(lambda: engine.facts()["queued"] == 1)
            assert engine.cancel("second")
            assert (await second).status is Status.CANCELLED
            assert engine.facts()["queued"] == 0
            assert not first.done()
            engine.cancel("first")
            await first

    asyncio.run(scene())


def test_a_caller_that_cancels_too_gets_no_outcome(open_engine: OpenEngine) -> None:
    async def scene() -> None:
        async with open_engine() as engine, running(engine, FOREVER, id="mine") as task:
            engine.cancel("mine")
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(scene())


def test_a_timeout_around_run_still_works_after_a_cancel_by_id(open_engine: OpenEngine) -> None:
    async def scene() -> None:
        async with open_engine() as engine:
            asyncio.get_running_loop().call_later(0.05, engine.cancel, "mine")
            async with asyncio.timeout(20):
                outcome = await engine.run(Execution(code=FOREVER), id="mine")
            assert outcome.status is Status.CANCELLED
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await engine.run(Execution(code=FOREVER))

    asyncio.run(scene())


def test_an_id_in_use_is_refused(open_engine: OpenEngine) -> None:
    async def scene() -> None:
        async with open_engine() as engine, running(engine, FOREVER, id="same") as first:
            with pytest.raises(InvalidExecution, match="'same' runs already"):
                await engine.run(Execution(code="print(1)"), id="same")
            engine.cancel("same")
            await first
            assert (await engine.run(Execution(code="print(1)"), id="same")).id == "same"

    asyncio.run(scene())


def test_a_program_that_cannot_be_run_gives_its_slot_back(open_engine: OpenEngine) -> None:
    async def scene() -> None:
        async with open_engine(max_running=1) as engine:
            for _ in range(3):
                with pytest.raises(UnknownEnvironment):
                    await engine.run(Execution(code="print(1)", environment="nowhere"))
            assert (await engine.run(Execution(code="print(1)"))).ok

    asyncio.run(scene())


def test_an_engine_must_be_opened_and_cannot_be_reopened(open_engine: OpenEngine) -> None:
    async def scene() -> None:
        async with open_engine() as engine:
            await engine.open()
            closed = Engine(engine.sandbox, engine.settings)
            with pytest.raises(RuntimeError, match="open"):
                await closed.run(Execution(code="print(1)"))
            await closed.close()
            with pytest.raises(Draining):
                await closed.open()

    asyncio.run(scene())


def test_closing_lets_running_programs_finish_and_refuses_others(open_engine: OpenEngine) -> None:
    async def scene() -> None:
        code = "import sys; print(sys.stdin.read()); import time; time.sleep(0.3); print('done')"
        async with open_engine(max_running=1) as engine, running(engine, code) as first:
            waiting = asyncio.create_task(engine.run(Execution(code="print(2)")))
            await until(lambda: engine.facts()["queued"] == 1)
            closing = asyncio.create_task(engine.close(grace_seconds=20))
            with pytest.raises(Draining):
                await waiting
            with pytest.raises(Draining):
                await engine.run(Execution(code="print(3)"))
            assert engine.facts()["draining"]
            assert (await first).stdout.endswith("done\n")
            await closing
            await engine.close()

    asyncio.run(scene())


def test_closing_cancels_programs_that_outlast_the_grace_period(open_engine: OpenEngine) -> None:
    async def scene() -> None:
        code, mark = marked()
        async with open_engine() as engine, running(engine, code) as task:
            await until(lambda: is_alive(mark))
            await engine.close(grace_seconds=0.1)
            assert (await task).status is Status.CANCELLED
            assert not is_alive(mark)

    asyncio.run(scene())


def test_cancelling_the_close_only_ends_the_grace_period(open_engine: OpenEngine) -> None:
    async def scene() -> None:
        code, mark = marked()
        async with open_engine() as engine, running(engine, code) as task:
            await until(lambda: is_alive(mark))
            closing = asyncio.create_task(engine.close(grace_seconds=1000))
            await asyncio.sleep(0)
            closing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await closing
            assert (await task).status is Status.CANCELLED
            assert not is_alive(mark)
            assert not engine.facts()["open"]

    asyncio.run(scene())


# ---- streams


async def read_all(events: AsyncGenerator[Event, None]) -> list[Event]:
    return [event async for event in events]


def text_of(events: list[Event], stream: str) -> str:
    return "".join(event.text for event in events if isinstance(event, Output) and event.stream == stream)


def in_engine(open_engine: OpenEngine, scene: Callable[[Engine], Awaitable[None]], **pool: Any) -> None:
    async def run() -> None:
        async with open_engine(**pool) as engine:
            await scene(engine)

    asyncio.run(run())


def test_a_stream_starts_reports_output_and_finishes(open_engine: OpenEngine) -> None:
    async def scene(engine: Engine) -> None:
        code = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"
        events = await read_all(engine.stream(Execution(code=code), id="mine"))
        assert events[0] == Started(id="mine")
        assert text_of(events, "stdout") == "out\n"
        assert text_of(events, "stderr") == "err\n"
        last = events[-1]
        assert isinstance(last, Finished)
        assert (last.outcome.id, last.outcome.exit_code, last.outcome.stdout) == ("mine", 3, "out\n")

    in_engine(open_engine, scene)


def test_output_arrives_while_the_program_runs(open_engine: OpenEngine) -> None:
    async def scene(engine: Engine) -> None:
        code, mark = marked()
        async with contextlib.aclosing(engine.stream(Execution(code=code))) as events:
            assert isinstance(await anext(events), Started)
            assert await anext(events) == Output(stream="stdout", text="up\n")
            await until(lambda: is_alive(mark))
        assert not is_alive(mark), "closing early waits until the program is gone"
        assert engine.facts()["running"] == 0

    in_engine(open_engine, scene)


def test_characters_split_between_writes_are_joined(open_engine: OpenEngine) -> None:
    async def scene(engine: Engine) -> None:
        code = (
            "import os, time\n"
            "for byte in 'ü€🌍'.encode():\n"
            "    for stream in (1, 2):\n"
            "        os.write(stream, bytes([byte])); time.sleep(0.005)\n"
            r"os.write(1, b'\xe2\x82')"
        )
        events = await read_all(engine.stream(Execution(code=code)))
        assert text_of(events, "stdout") == "ü€🌍\ufffd"
        assert text_of(events, "stderr") == "ü€🌍"
        last = events[-1]
        assert isinstance(last, Finished)
        assert last.outcome.stdout == "ü€🌍\ufffd"

    in_engine(open_engine, scene)


def test_a_stream_and_its_outcome_end_at_the_same_character(open_engine: OpenEngine) -> None:
    async def scene(engine: Engine) -> None:
        limits = Limits(output_bytes=11)
        events = await read_all(engine.stream(Execution(code="print('ü' * 100)", limits=limits)))
        last = events[-1]
        assert isinstance(last, Finished)
        assert text_of(events, "stdout") == last.outcome.stdout == "ü" * 5

    in_engine(open_engine, scene)


def test_a_slow_reader_slows_the_program(open_engine: OpenEngine) -> None:
    async def scene(engine: Engine) -> None:
        lines = 8 * UNREAD_BYTES_MAX // 1024
        code, mark = marked(f"import time\nfor i in range({lines}): print(f'{{time.monotonic():<1023}}', flush=True)")
        limits = Limits(output_bytes=16 * UNREAD_BYTES_MAX)
        async with contextlib.aclosing(engine.stream(Execution(code=code, limits=limits))) as events:
            assert isinstance(await anext(events), Started)
            await until_stuck(mark)
            woke = time.monotonic()
            rest = [event async for event in events]
        times = [float(line) for line in text_of(rest, "stdout").removeprefix("up\n").split()]
        assert len(times) == lines
        unread_bytes = sum(at < woke for at in times) * 1024
        assert unread_bytes < 2 * UNREAD_BYTES_MAX, "the program continued though its output was not read"

    in_engine(open_engine, scene)


def test_a_stream_that_cannot_begin_raises_at_its_first_step(open_engine: OpenEngine) -> None:
    async def scene(engine: Engine) -> None:
        async with running(engine, FOREVER, id="first") as first:
            with pytest.raises(QueueFull):
                await anext(engine.stream(Execution(code="print(1)")))
            engine.cancel("first")
            await first
        with pytest.raises(UnknownEnvironment):
            await anext(engine.stream(Execution(code="print(1)", environment="nowhere")))

    in_engine(open_engine, scene, max_running=1, max_queued=0)


def test_a_stream_cancelled_by_id_finishes(open_engine: OpenEngine) -> None:
    async def scene(engine: Engine) -> None:
        events = engine.stream(Execution(code=f"print('up', flush=True)\n{FOREVER}"), id="mine")
        assert await anext(events) == Started(id="mine")
        assert await anext(events) == Output(stream="stdout", text="up\n")
        assert engine.cancel("mine")
        (last,) = await read_all(events)
        assert isinstance(last, Finished)
        assert last.outcome.status is Status.CANCELLED

    in_engine(open_engine, scene)


def test_cancelling_the_reader_ends_the_program(open_engine: OpenEngine) -> None:
    async def scene(engine: Engine) -> None:
        code, mark = marked()
        reading = asyncio.create_task(read_all(engine.stream(Execution(code=code))))
        await until(lambda: is_alive(mark))
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert not is_alive(mark)

    in_engine(open_engine, scene)


def test_an_unread_stream_runs_nothing(open_engine: OpenEngine) -> None:
    async def scene(engine: Engine) -> None:
        events = engine.stream(Execution(code=FOREVER))
        await asyncio.sleep(0)
        assert engine.facts()["running"] == 0
        await events.aclose()

    in_engine(open_engine, scene)


def test_a_hundred_mixed_runs_leave_no_slot_taken(open_engine: OpenEngine) -> None:
    async def scene(engine: Engine) -> None:
        async def one(number: int) -> None:
            match number % 4:
                case 0:
                    assert (await engine.run(Execution(code=f"print({number})"))).stdout == f"{number}\n"
                case 1:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(0.001 * number):
                            await engine.run(Execution(code=FOREVER))
                case 2:
                    async with contextlib.aclosing(engine.stream(Execution(code="print('x' * 100000)"))) as events:
                        await anext(events)
                case _:
                    outcome = await engine.run(Execution(code=FOREVER, limits=Limits(wall_seconds=0.05)))
                    assert outcome.status is Status.TIMED_OUT

        await asyncio.gather(*(one(number) for number in range(100)))
        facts = engine.facts()
        assert (facts["running"], facts["queued"]) == (0, 0)

    in_engine(open_engine, scene, max_running=4)
