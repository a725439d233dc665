"""Sessions by id: their owners, their number, their expiry, and that they leave nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from belljar.assembly import build_engine
from belljar.backends.local.session.session import LocalSession
from belljar.contract.errors import (
    Draining,
    InvalidExecution,
    NotOffered,
    SessionEnded,
    SessionExists,
    SessionNotFound,
    TooManySessions,
    UnknownEnvironment,
)
from belljar.contract.execution import Execution, Limits
from belljar.contract.request import CellRequest, SessionRequest
from belljar.contract.sessions import SessionOrder
from belljar.engine.admission.request import admit_cell, admit_session
from belljar.engine.engine import Engine
from belljar.settings import Settings, load

OpenEngine = Callable[..., contextlib.AbstractAsyncContextManager[Engine]]


@pytest.fixture(scope="module")
def full_settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """The environment in BELLJAR_STATE_DIR, which has IPython, with separate uids and cgroups."""
    given = load()
    jail = dataclasses.replace(
        given.jail,
        uid_base=3_100_000_000 + os.getpid() % 64 * 8 * 65536,
        cgroup_parent=f"belljar-test-sessions-{os.getpid()}",
    )
    pool = dataclasses.replace(given.pool, ready_guests=1, jail_seconds=0.2)  # unused jails are closed soon
    return dataclasses.replace(given, jail=jail, pool=pool, runtime_dir=tmp_path_factory.mktemp("run"))


@contextlib.asynccontextmanager
async def opened(settings: Settings, **changes: Any) -> AsyncIterator[Engine]:
    engine = build_engine(dataclasses.replace(settings, sessions=dataclasses.replace(settings.sessions, **changes)))
    await engine.open()
    try:
        yield engine
    finally:
        await engine.close(grace_seconds=0.0)


async def until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


def cell(code: str, **limits: Any) -> Execution:
    return Execution(code=code, limits=dataclasses.replace(Limits(), **limits))


def test_ids_are_unguessable_or_chosen_by_the_caller(full_settings: Settings) -> None:
    async def scene() -> None:
        async with opened(full_settings) as engine:
            sessions = engine.sessions
            first, second = [await sessions.open(SessionOrder(caller="ann")) for _ in range(2)]
            assert first.id != second.id
            assert len(first.id) == 34
            named = await sessions.open(SessionOrder(id="work", caller="ann"))
            assert named.id == "work"
            with pytest.raises(SessionExists):
                await sessions.open(SessionOrder(id="work", caller="ann"))
            assert (await sessions.open(SessionOrder(id="work", caller="bob"))).id == "work"

    asyncio.run(scene())


def test_a_session_belongs_to_its_caller_only(full_settings: Settings) -> None:
    async def scene() -> None:
        async with opened(full_settings) as engine:
            sessions = engine.sessions
            own = await sessions.open(SessionOrder(caller="ann"))
            for attempt in (
                lambda: sessions.get("bob", own.id),
                lambda: sessions.interrupt("bob", own.id),
            ):
                with pytest.raises(SessionNotFound):
                    attempt()
            for work in (
                sessions.run("bob", own.id, cell("1")),
                sessions.branch("bob", own.id),
                sessions.read_file("bob", own.id, "x"),
                sessions.write_file("bob", own.id, "x", b""),
                sessions.delete_file("bob", own.id, "x"),
                sessions.list_files("bob", own.id),
                sessions.close("bob", own.id),
            ):
                with pytest.raises(SessionNotFound):
                    await work
            assert sessions.list("bob") == []
            assert [each.id for each in sessions.list("ann")] == [own.id]

    asyncio.run(scene())


def test_the_session_limit_refuses_new_sessions_and_closes_none(full_settings: Settings) -> None:
    async def scene() -> None:
        async with opened(full_settings, max_sessions=3, max_per_caller=2) as engine:
            sessions = engine.sessions
            for _ in range(2):
                await sessions.open(SessionOrder(caller="ann"))
            with pytest.raises(TooManySessions) as caught:
                await sessions.open(SessionOrder(caller="ann"))
            assert caught.value.retry_after_seconds >= 1
            await sessions.open(SessionOrder(caller="bob"))
            with pytest.raises(TooManySessions):
                await sessions.open(SessionOrder(caller="bob"))
            assert (len(sessions.list("ann")), len(sessions.list("bob"))) == (2, 1)
            await sessions.close("bob", sessions.list("bob")[0].id)
            await sessions.open(SessionOrder(caller="bob"))

    asyncio.run(scene())


def test_concurrent_opens_stay_within_the_ceiling(full_settings: Settings) -> None:
    async def scene() -> None:
        async with opened(full_settings, max_sessions=3) as engine:
            opening = [engine.sessions.open(SessionOrder()) for _ in range(8)]
            answers = await asyncio.gather(*opening, return_exceptions=True)
            assert sum(isinstance(each, TooManySessions) for each in answers) == 5
            assert len(engine.sessions.list("")) == 3

    asyncio.run(scene())


def test_an_operator_may_have_the_oldest_idle_session_replaced(full_settings: Settings) -> None:
    async def scene() -> None:
        async with opened(full_settings, max_sessions=2, when_full="replace_oldest_idle") as engine:
            sessions = engine.sessions
            busy, idle = [await sessions.open(SessionOrder()) for _ in range(2)]
            running = asyncio.create_task(
                sessions.run("", busy.id, cell("import time; time.sleep(60)", wall_seconds=60))
            )
            await until(lambda: sessions.get("", busy.id).is_busy)
            await sessions.open(SessionOrder())
            with pytest.raises(SessionEnded) as caught:
                sessions.get("", idle.id)
            assert caught.value.details["reason"] == "replaced"
            assert sessions.get("", busy.id).is_busy
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running

    asyncio.run(scene())


def test_an_impossible_branch_count_closes_no_session(full_settings: Settings) -> None:
    async def scene() -> None:
        async with opened(full_settings, max_sessions=3, when_full="replace_oldest_idle") as engine:
            sessions = engine.sessions
            opened_ids = {(await sessions.open(SessionOrder())).id for _ in range(3)}
            branched = next(iter(opened_ids))
            with pytest.raises(TooManySessions, match="you have 3 of the 3 sessions"):
                await sessions.branch("", branched, 3)
            with pytest.raises(InvalidExecution, match="count is 4, but there may be 3 sessions"):
                await sessions.branch("", branched, 4)
            assert {state.id for state in sessions.list("")} == opened_ids
            assert len(await sessions.branch("", branched, 2)) == 2

    asyncio.run(scene())


def test_a_caller_that_leaves_during_replacement_gets_no_session(full_settings: Settings) -> None:
    async def scene() -> None:
        async with opened(full_settings, max_sessions=1, when_full="replace_oldest_idle") as engine:
            sessions = engine.sessions
            await sessions.open(SessionOrder())
            opening = asyncio.create_task(sessions.open(SessionOrder()))
            loop = asyncio.get_running_loop()
            sessions.on_end = lambda *_: loop.call_soon(opening.cancel)  # while the other session is being closed
            with pytest.raises(asyncio.CancelledError):
                await opening
            assert sessions.facts()["ended"] == {"replaced": 1}
            assert sessions.list("") == []
            assert (await sessions.open(SessionOrder())).id

    asyncio.run(scene())


def test_concurrent_requests_for_a_new_session_share_it(full_settings: Settings) -> None:
    async def scene() -> None:
        async with opened(full_settings) as engine:
            sessions, rooms = engine.sessions, []

            @contextlib.contextmanager
            def room() -> Iterator[None]:
                rooms.append(len(sessions.list("")))
                yield

            order = SessionOrder(id="shared")
            first = cell("ready = 1")
            found = await asyncio.gather(*(sessions.find_or_open(order, room, first) for _ in range(5)))
            assert sorted(is_new for _, is_new in found) == [False] * 4 + [True]
            assert {state.id for state, _ in found} == {"shared"}
            assert rooms == [0]
            assert (await sessions.run("", "shared", cell("print(ready)"))).stdout == "1\n"
            assert (await sessions.find_or_open(order, room))[1] is False

    asyncio.run(scene())


def test_a_waiting_caller_opens_the_session_if_the_first_attempt_fails(full_settings: Settings) -> None:
    async def scene() -> None:
        async with opened(full_settings) as engine:
            sessions = engine.sessions
            order = SessionOrder(id="shared")
            endless = cell("import time; time.sleep(60)", wall_seconds=60)
            leaving = asyncio.create_task(sessions.find_or_open(order, contextlib.nullcontext, endless))
            await until(lambda: engine.facts()["running"])
            with pytest.raises(SessionNotFound):
                sessions.get("", "shared")  # it has no owner before its first cell has run
            with pytest.raises(SessionExists):
                await sessions.open(order)
            waiting = asyncio.create_task(sessions.find_or_open(order, contextlib.nullcontext))
            left = asyncio.create_task(sessions.find_or_open(order, contextlib.nullcontext))
            await asyncio.sleep(0)
            left.cancel()
            leaving.cancel()
            assert (await waiting)[1] is True
            for each in (leaving, left):
                with pytest.raises(asyncio.CancelledError):
                    await each
            with pytest.raises(UnknownEnvironment):
                await sessions.find_or_open(SessionOrder(environment="nowhere", id="x"), contextlib.nullcontext)
            assert sessions._opening == {}
            assert [each.id for each in sessions.list("")] == ["shared"]

    asyncio.run(scene())


def test_the_name_of_a_session_that_has_just_ended_is_free(full_settings: Settings) -> None:
    async def scene() -> None:
        async with opened(full_settings) as engine:
            sessions = engine.sessions
            await sessions.open(SessionOrder(id="again"))
            live = sessions._open.find("", "again").live
            assert isinstance(live, LocalSession)
            live.end("crash")
            await sessions.open(SessionOrder(id="again"))
            assert (await sessions.run("", "again", cell("1"))).ok
            assert sessions.facts()["ended"] == {"crash": 1}

    asyncio.run(scene())


@pytest.mark.parametrize("step_seconds", [3600.0, -3600.0], ids=["forward", "back"])
def test_setting_the_clock_expires_no_session(
    full_settings: Settings, monkeypatch: pytest.MonkeyPatch, step_seconds: float
) -> None:
    async def scene() -> None:
        async with opened(full_settings) as engine:
            sessions, real = engine.sessions, time.time
            own = await sessions.open(SessionOrder(idle_seconds=1.0))
            assert (await sessions.run("", own.id, cell("import time; time.sleep(1.5)"))).ok
            used_at = (
                time.monotonic()
            )  # from now on it is checked often, because it was busy when it should have expired
            monkeypatch.setattr(time, "time", lambda: real() + step_seconds)
            await until(lambda: not sessions.list(""))
            assert time.monotonic() - used_at > 0.9

    asyncio.run(scene())


def test_an_idle_session_expires_and_a_busy_one_does_not(full_settings: Settings) -> None:
    async def scene() -> None:
        async with opened(full_settings) as engine:
            sessions = engine.sessions
            idle = await sessions.open(SessionOrder(idle_seconds=0.3))
            busy = await sessions.open(SessionOrder(idle_seconds=0.3))
            outcome = await sessions.run("", busy.id, cell("import time; time.sleep(1); 1"))
            assert outcome.ok
            with pytest.raises(SessionEnded) as caught:
                sessions.get("", idle.id)
            assert caught.value.details["reason"] == "expired"
            assert sessions.get("", busy.id).cells == 1
            await until(lambda: not sessions.list(""))
            assert sessions.facts()["ended"] == {"expired": 2}

    asyncio.run(scene())


def test_cells_of_one_session_take_turns_in_order(full_settings: Settings) -> None:
    async def scene() -> None:
        async with opened(full_settings) as engine:
            own = await engine.sessions.open(SessionOrder())
            await engine.sessions.run("", own.id, cell("seen = []"))
            work = [engine.sessions.run("", own.id, cell(f"seen.append({n}); seen")) for n in range(6)]
            outcomes = await asyncio.gather(*work)
            assert [each.cell for each in outcomes] == [2, 3, 4, 5, 6, 7]
            assert outcomes[-1].displays[0].content == b"[0, 1, 2, 3, 4, 5]"

    asyncio.run(scene())


def test_cells_take_running_slots(full_settings: Settings) -> None:
    async def scene() -> None:
        narrow = dataclasses.replace(full_settings, pool=dataclasses.replace(full_settings.pool, max_running=1))
        async with opened(narrow) as engine:
            own = await engine.sessions.open(SessionOrder())
            events = engine.sessions.stream(
                "", own.id, cell("print('up')\nimport time; time.sleep(60)", wall_seconds=60)
            )
            await anext(events)
            assert engine.facts()["running"] == 1
            waiting = asyncio.create_task(engine.run(Execution(code="print(1)")))
            await until(lambda: engine.facts()["queued"] == 1)
            await events.aclose()
            assert (await waiting).ok
            assert not engine.sessions.get("", own.id).is_busy

    asyncio.run(scene())


def test_cancelling_by_id_interrupts_the_cell_and_keeps_the_session(full_settings: Settings) -> None:
    async def scene() -> None:
        async with opened(full_settings) as engine:
            own = await engine.sessions.open(SessionOrder())
            await engine.sessions.run("", own.id, cell("kept = 3"))
            code = cell("import time\nwhile True: time.sleep(0.1)", wall_seconds=60)
            running = asyncio.create_task(engine.sessions.run("", own.id, code, execution_id="x_1"))
            await until(lambda: engine.facts()["running"])
            assert engine.cancel("x_1")
            assert (await running).status == "cancelled"
            assert (await engine.sessions.run("", own.id, cell("kept"))).displays[0].content == b"3"

    asyncio.run(scene())


def test_closing_a_session_ends_the_cell_that_runs(full_settings: Settings) -> None:
    async def scene() -> None:
        async with opened(full_settings) as engine:
            own = await engine.sessions.open(SessionOrder())
            running = asyncio.create_task(
                engine.sessions.run("", own.id, cell("import time; time.sleep(60)", wall_seconds=60))
            )
            waiting = asyncio.create_task(engine.sessions.run("", own.id, cell("1")))
            await until(lambda: engine.facts()["running"])
            await engine.sessions.close("", own.id)
            outcome = await running
            assert outcome.error is not None
            assert (outcome.error.type, outcome.error.message) == ("SessionEnded", "the session has ended: closed")
            with pytest.raises(SessionEnded):
                await waiting

    asyncio.run(scene())


def test_nothing_is_left_of_sessions_however_they_end(full_settings: Settings) -> None:
    ends = ["1", "import os; os._exit(1)", "import os; os.abort()", "x = bytearray(99 << 20)", "1/0",
            "import subprocess; subprocess.Popen(['sleep', '99']); 1", "import os; os.write(3, b'x')"]  # fmt: skip

    async def scene() -> None:
        async with opened(full_settings) as engine:
            sessions = engine.sessions
            await sessions.open(SessionOrder(id="stays"))

            async def one(code: str) -> None:
                own = await sessions.open(SessionOrder(limits=Limits(memory_bytes=64 << 20)))
                await sessions.run("", own.id, cell(code))
                with contextlib.suppress(SessionEnded):
                    await sessions.close("", own.id)

            def is_quiet() -> bool:
                """Whether only the remaining session and one ready guest of each kind exist."""
                facts = engine.sandbox.facts()
                return (facts["ready_guests"], facts["guests"], facts["jails"]) == (2, 3, 3)

            for code in ends:
                await one(code)
            await until(is_quiet)
            before = len(os.listdir("/proc/self/fd"))
            for _ in range(2):
                await asyncio.gather(*(one(code) for code in ends))
            await until(lambda: is_quiet() and len(os.listdir("/proc/self/fd")) <= before + 8)
            assert [each.id for each in sessions.list("")] == ["stays"]

    asyncio.run(scene())
    assert not list(Path(full_settings.runtime_dir).glob("*/*"))


def test_closing_the_engine_ends_every_session(full_settings: Settings) -> None:
    async def scene() -> None:
        engine = build_engine(full_settings)
        await engine.open()
        own = [await engine.sessions.open(SessionOrder()) for _ in range(3)]
        running = asyncio.create_task(
            engine.sessions.run("", own[0].id, cell("import time; time.sleep(60)", wall_seconds=60))
        )
        await until(lambda: engine.facts()["running"])
        await engine.close(grace_seconds=0.0)
        assert (await running).status == "cancelled"
        assert engine.sessions.list("") == []
        with pytest.raises(Draining):
            await engine.sessions.open(SessionOrder())

    asyncio.run(scene())


def test_a_session_that_cannot_be_ended_does_not_keep_others_open(
    full_settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        engine = build_engine(full_settings)
        await engine.open()
        for id in ("odd", "a", "b"):
            await engine.sessions.open(SessionOrder(id=id))

        def hear(id: str, reason: str, cells: int) -> None:
            if id == "odd":
                raise RuntimeError("its caller has left")

        engine.sessions.on_end = hear
        await engine.close(grace_seconds=0.0)
        assert engine.sessions.list("") == []

    asyncio.run(scene())
    assert not list(Path(full_settings.runtime_dir).glob("*/*"))
    (told,) = (each for each in caplog.records if each.name == "belljar.sessions")
    assert told.exc_info is not None
    assert str(told.exc_info[1]) == "its caller has left"


def test_an_environment_without_ipython_is_reported(open_engine: OpenEngine) -> None:
    async def scene() -> None:
        async with open_engine() as engine:
            with pytest.raises(NotOffered, match="IPython"):
                await engine.sessions.open(SessionOrder())
            with pytest.raises(UnknownEnvironment):
                await engine.sessions.open(SessionOrder(environment="nowhere"))

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("field", "asked"),
    [
        pytest.param("id", {"id": "a b"}, id="id_with_space"),
        pytest.param("id", {"id": "x" * 129}, id="id_too_long"),
        pytest.param("id", {"id": "../x"}, id="id_with_slash"),
        pytest.param("id", {"id": 5}, id="id_not_text"),
        pytest.param("idle_seconds", {"idle_seconds": 0}, id="idle_zero"),
        pytest.param("idle_seconds", {"idle_seconds": float("nan")}, id="idle_nan"),
        pytest.param("idle_seconds", {"idle_seconds": 1e9}, id="idle_too_long"),
        pytest.param("idle_seconds", {"idle_seconds": "1"}, id="idle_text"),
        pytest.param("language", {"language": "cobol"}, id="language"),
        pytest.param("env", {"env": {"BELLJAR_X": "1"}}, id="env"),
    ],
)
def test_admission_names_the_field(settings: Settings, field: str, asked: dict[str, Any]) -> None:
    with pytest.raises((InvalidExecution, NotOffered)) as caught:
        admit_session(settings, SessionRequest(**asked))
    assert caught.value.details["field"] == field


def test_a_cell_has_the_limits_of_its_session(settings: Settings) -> None:
    session = dataclasses.replace(Limits(), wall_seconds=77.0, memory_bytes=5 << 20)
    assert admit_cell(settings, session, CellRequest("1")).limits == session
    assert admit_cell(settings, session, CellRequest("1", timeout=3)).limits.wall_seconds == 3
    assert admit_cell(settings, session, CellRequest("1", timeout=3)).limits.memory_bytes == 5 << 20


def test_a_limit_of_the_whole_session_is_refused_before_the_code_of_a_cell(settings: Settings) -> None:
    with pytest.raises(InvalidExecution) as caught:
        admit_cell(settings, Limits(), CellRequest(" ", limits={"memory_mb": 5}))
    assert caught.value.details["field"] == "memory_mb"
