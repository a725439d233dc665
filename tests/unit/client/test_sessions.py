"""Sessions through the client: against the real server, and against a network that fails."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from belljar.client import (
    AnswerLost,
    AsyncClient,
    CallerError,
    Client,
    Finished,
    Outcome,
    Output,
    Retries,
    SessionBusy,
    SessionEnded,
    SessionNotFound,
    Started,
    Status,
)
from belljar.client.errors import Unreachable
from belljar.contract.errors import FileNotInSession, InvalidExecution, UnsafePath
from belljar.contract.execution import Limits
from belljar.contract.sessions import SessionState

from .conftest import ScriptedServer

LOOP = "import time\nprint('up', flush=True)\nwhile True: time.sleep(0.01)"
STATE = SessionState(
    id="s 1/é",
    language="python",
    environment="default",
    is_busy=False,
    cells=0,
    memory_bytes=1,
    created_at=0.0,
    last_used_at=1.5,
    expires_at=600.0,
    parent=None,
    limits=Limits(),
)


@pytest.fixture
def client(real_url: str) -> Iterator[Client]:
    with Client(real_url) as opened:
        yield opened
        assert opened.sessions() == [], "every test closes what it opens"


def value(outcome: Outcome) -> str:
    (text,) = (each.content.decode() for each in outcome.displays if each.mime == "text/plain")
    return text


# ---- the real server


def test_cells_remember(client: Client) -> None:
    with client.session(timeout=5, env={"LEVEL": "3"}) as session:
        first = session.run("import os; x = int(os.environ['LEVEL'])")
        assert (first.status, first.cell) == (Status.OK, 1)
        assert value(session.run("x + 1")) == "4"
        state = session.state()
        assert (state.id, state.cells, state.is_busy, state.limits.wall_seconds) == (session.id, 2, False, 5.0)
        assert [each.id for each in client.sessions()] == [session.id]
        assert value(client.attach(session.id).run("x")) == "3"


def test_events_of_a_cell(client: Client) -> None:
    with client.session() as session:
        started, output, display, finished = session.stream("print('hi')\n7")
        assert isinstance(started, Started)
        assert output == Output(stream="stdout", text="hi\n")
        assert isinstance(finished, Finished)
        assert finished.outcome.displays == (display,)
        assert (value(finished.outcome), finished.outcome.stdout, finished.outcome.cell) == ("7", "hi\n", 1)


def test_leaving_a_stream_interrupts_the_cell(client: Client) -> None:
    with client.session() as session:
        with contextlib.closing(session.stream(LOOP, timeout=60)) as events:
            assert isinstance(next(events), Started)
            assert next(events) == Output(stream="stdout", text="up\n")
        assert value(session.run("5", timeout=10)) == "5"


def test_the_names_of_a_sandbox_are_understood(client: Client, real_url: str) -> None:
    """A program that opens sessions of a Sandbox needs no other words here."""
    with client.session() as session:
        assert session.open() is session
        with contextlib.closing(session.stream(LOOP, timeout=60)) as events:
            assert isinstance(next(events), Started)
            with pytest.raises(SessionBusy):
                session.run("1", waits=False)
        session.write_file("a", "b")
        assert session.read_file("a") == b"b"

    async def in_a_loop() -> str:
        async with AsyncClient(real_url) as other, await other.session().open() as opened:
            assert await opened.open() is opened
            return value(await opened.run("2"))

    assert asyncio.run(in_a_loop()) == "2"


def test_interrupt_and_busy(client: Client) -> None:
    with client.session() as session:
        outcomes: list[Outcome] = []
        events = session.stream(LOOP, timeout=60)
        assert isinstance(next(events), Started)
        next(events)
        with pytest.raises(SessionBusy):
            session.run("1", wait=False)
        waiting = threading.Thread(target=lambda: outcomes.append(session.run("'after'")))
        waiting.start()
        assert session.interrupt() is True
        (finished,) = (each for each in events if isinstance(each, Finished))
        assert finished.outcome.error is not None
        assert finished.outcome.error.type == "KeyboardInterrupt"
        waiting.join(30)
        assert [value(each) for each in outcomes] == ["'after'"]
        assert session.interrupt() is False


def test_files(client: Client, tmp_path: Path) -> None:
    (tmp_path / "local").write_bytes(b"\0\xff")
    with client.session(files={"a.txt": "hello"}) as session:
        session.upload("d/é %.bin", tmp_path / "local")
        session.upload("b.txt", "text")
        assert [(each.path, each.size_bytes) for each in session.files()] == [
            ("a.txt", 5),
            ("b.txt", 4),
            ("d/é %.bin", 2),
        ]
        assert session.download("d/é %.bin") == b"\0\xff"
        session.delete("a.txt")
        with pytest.raises(FileNotInSession):
            session.download("a.txt")
        with pytest.raises(UnsafePath):
            session.download("../a.txt")


def test_branches(client: Client) -> None:
    with client.session() as session:
        session.run("x = [0]")
        with session.branch(3) as branches:
            assert [value(each.run(f"x.append({n}); x")) for n, each in enumerate(branches)] == [
                "[0, 0]",
                "[0, 1]",
                "[0, 2]",
            ]
            assert {each.state().parent for each in branches} == {session.id}
        assert value(session.run("x")) == "[0]"


def test_end_is_told(client: Client) -> None:
    with client.session() as session:
        session.run("import os; os._exit(3)")
        with pytest.raises(SessionEnded) as caught:
            session.run("1")
        assert caught.value.details["reason"] == "exit"
    with pytest.raises(SessionNotFound):
        client.attach("nope")


def test_event_loop(real_url: str) -> None:
    async def use() -> None:
        async with AsyncClient(real_url) as client:
            async with client.session() as session:
                assert value(await session.run("x = 1; x")) == "1"
                cell = asyncio.create_task(session.run(LOOP, timeout=60))
                while not (await session.state()).is_busy:
                    await asyncio.sleep(0.01)
                cell.cancel()
                assert value(await session.run("x", timeout=10)) == "1", "cancelling interrupted the cell"
                events = [each async for each in session.stream("print(x)")]
                assert isinstance(events[-1], Finished)
                await session.upload("a", b"1")
                assert await session.download("a") == b"1"
                assert [each.path for each in await session.files()] == ["a"]
                await session.delete("a")
                async with await session.branch(2) as branches:
                    assert [value(await each.run("x")) for each in branches] == ["1", "1"]
                assert not await session.interrupt()
                assert (await client.attach(session.id)).id == session.id
            opened = await client.session(id="by-hand")
            await opened.close()
            await opened.close()
            assert await client.sessions() == []

    asyncio.run(use())


# ---- a network that fails


@pytest.fixture
def far(server: ScriptedServer) -> Iterator[Client]:
    retries = Retries(attempts=3, first_pause_seconds=0.01, total_seconds=5)
    with Client(server.url, retries=retries, room_seconds=2) as opened:
        yield opened


@pytest.mark.parametrize(
    "use",
    [
        pytest.param(lambda session: session.run("1"), id="run"),
        pytest.param(lambda session: list(session.stream("1")), id="stream"),
        pytest.param(lambda session: session.branch(2), id="branch"),
        pytest.param(lambda session: session.interrupt(), id="interrupt"),
        pytest.param(lambda session: session.delete("a"), id="delete"),
    ],
)
def test_what_may_have_happened_is_not_sent_again(
    server: ScriptedServer, far: Client, use: Callable[[Any], Any]
) -> None:
    server.script = [server.reply(201, STATE.as_json()), server.hang_up()]
    session = far.session()
    with pytest.raises(AnswerLost):
        use(session)
    assert len(server.seen) == 2


def test_opening_is_not_sent_again(server: ScriptedServer, far: Client) -> None:
    server.script = [server.hang_up()]
    with pytest.raises(AnswerLost):
        far.session()
    assert len(server.seen) == 1


def test_full_server_is_asked_again(server: ScriptedServer, far: Client) -> None:
    full = server.refuse(429, "too_many_sessions", Retry_After="0")
    server.script = [full, server.reply(201, STATE.as_json()), server.reply(204, b"")]
    with far.session() as session:
        assert session.opened == STATE
    assert [each.method for each in server.seen] == ["POST", "POST", "DELETE"]


def test_questions_are_asked_again(server: ScriptedServer, far: Client) -> None:
    server.script = [server.reply(201, STATE.as_json()), server.hang_up(), server.reply(200, b"\0content")]
    assert far.session().download("d/a b%é") == b"\0content"
    assert server.seen[-1].path == "/v1/sessions/s%201%2F%C3%A9/files/d/a%20b%25%C3%A9"


def test_upload_sends_raw_bytes(server: ScriptedServer, far: Client) -> None:
    server.script = [server.reply(201, STATE.as_json()), server.reply(204, b"")]
    far.session().upload("a", b"\0\xff")
    assert (server.seen[-1].method, server.seen[-1].body) == ("PUT", b"\0\xff")
    assert server.seen[-1].headers["content-type"] == "application/octet-stream"


def test_only_what_is_named_is_sent(server: ScriptedServer, far: Client) -> None:
    server.script = [server.reply(201, STATE.as_json())]
    far.session()
    far.session(timeout=3, memory_mb=64, idle_seconds=9, files={"a": "b"})
    assert [each.body for each in server.seen] == [
        {},
        {
            "limits": {"memory_mb": 64, "wall_seconds": 3},
            "idle_seconds": 9,
            "files": [{"path": "a", "content": "b", "encoding": "utf-8"}],
        },
    ]


@pytest.mark.parametrize(
    ("use", "message"),
    [
        pytest.param(lambda far: far.session(timeout=3, limits={"wall_seconds": 4}), "disagree", id="two_times"),
        pytest.param(lambda far: far.session(env=["K=V"]), "env must be a mapping", id="env_is_a_list"),
        pytest.param(lambda far: far.session(tools=[print]), "the name of a tool", id="a_tool_is_a_function"),
        pytest.param(lambda far: far.attach("s").run("1", limits=[1]), "limits must be", id="limits_is_a_list"),
        pytest.param(lambda far: far.attach("s").upload("a", "\ud800"), "lone surrogate", id="half_a_character"),
    ],
)
def test_what_cannot_be_sent_is_refused_here(
    server: ScriptedServer, far: Client, use: Callable[[Client], Any], message: str
) -> None:
    server.script = [server.reply(200, STATE.as_json())]
    with pytest.raises(InvalidExecution, match=message):
        use(far)
    assert not [each for each in server.seen if each.method != "GET"]


def test_whole_limits_are_a_base_for_the_short_names(server: ScriptedServer, far: Client) -> None:
    server.script = [server.reply(201, STATE.as_json())]
    far.session(limits=Limits(), timeout=3)
    assert server.seen[0].body["limits"] == {**Limits().as_json(), "wall_seconds": 3}


def test_failure_inside_counts_more_than_failure_to_close(server: ScriptedServer, far: Client) -> None:
    server.script = [server.reply(201, STATE.as_json()), server.hang_up()]
    with pytest.raises(ZeroDivisionError), far.session():
        raise ZeroDivisionError
    with pytest.raises(AnswerLost):
        server.script = [server.reply(201, STATE.as_json()), server.hang_up()]
        with far.session():
            pass


def test_malformed_answers_and_urls_raise_their_own_errors(server: ScriptedServer, far: Client) -> None:
    server.script = [server.reply(201, {"id": "x"})]
    with pytest.raises(AnswerLost):
        far.session()
    with pytest.raises(CallerError):
        Client("nope://x").session()
    with pytest.raises(Unreachable), Client("http://127.0.0.1:1", retries=Retries(attempts=1)) as client:
        client.session()
