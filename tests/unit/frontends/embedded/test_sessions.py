"""Sessions from Python: blocking and asynchronous, and the example that searches by branching."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import belljar
from belljar.contract.errors import CallerError, InvalidExecution, SessionBusy, SessionEnded
from belljar.contract.execution import Finished, Output
from belljar.settings import Settings


def test_both_kinds_do_the_same(settings: Settings) -> None:
    async def scene() -> list[Any]:
        async with belljar.AsyncSandbox(settings=settings) as box, box.session(files={"in": "5"}) as session:
            await session.run("x = int(open('in').read())")
            events = [event async for event in session.stream("x + 1")]
            (copy,) = await session.branch()
            await copy.run("x = 9")
            await copy.write_file("out", "text")
            paths = [file.path for file in await copy.files()]
            await copy.delete_file("out")
            seen = [
                isinstance(events[-1], Finished) and events[-1].outcome.cell,
                (await session.run("x")).displays[0].content,
                (await copy.run("x")).displays[0].content,
                paths,
                await copy.interrupt(),
                (await copy.state()).parent == session.id,
            ]
            await copy.close()
            with pytest.raises(SessionEnded):
                await copy.run("1")
            return seen

    def in_threads() -> list[Any]:
        with belljar.Sandbox(settings=settings) as box, box.session(files={"in": "5"}) as session:
            session.run("x = int(open('in').read())")
            events = list(session.stream("x + 1"))
            (copy,) = session.branch()
            copy.run("x = 9")
            copy.write_file("out", "text")
            paths = [file.path for file in copy.files()]
            copy.delete_file("out")
            seen = [
                isinstance(events[-1], Finished) and events[-1].outcome.cell,
                session.run("x").displays[0].content,
                copy.run("x").displays[0].content,
                paths,
                copy.interrupt(),
                copy.state().parent == session.id,
            ]
            copy.close()
            with pytest.raises(SessionEnded):
                copy.run("1")
            return seen

    expected = [2, b"5", b"9", ["in", "out"], False, True]
    assert asyncio.run(scene()) == expected
    assert in_threads() == expected


def test_a_session_that_was_not_opened_says_what_to_do(box: belljar.Sandbox) -> None:
    session = box.session()
    with pytest.raises(CallerError, match="open"):
        session.run("1")
    session.close()


def test_closing_the_sandbox_closes_its_sessions(settings: Settings) -> None:
    with belljar.Sandbox(settings=settings) as box:
        session = box.session().open()
        session.run("x = 1")
        events = session.stream("1")
        next(events)
    for use in (lambda: session.run("x"), lambda: list(session.stream("x")), lambda: session.branch(), session.files):
        with pytest.raises(CallerError, match="this sandbox is closed; make a new one"):
            use()
    events.close()


def test_a_session_keeps_its_sandbox(settings: Settings) -> None:
    with belljar.Sandbox(settings=settings).session() as session:
        gc.collect()
        session.run("x = 6")
        (copy,) = session.branch()
    del session
    gc.collect()
    assert copy.run("x * 7").displays[0].content == b"42"
    copy.close()


def test_an_async_session_keeps_its_sandbox(settings: Settings) -> None:
    async def open_one() -> tuple[belljar.AsyncSession, Callable[..., Any]]:
        box = belljar.AsyncSandbox(settings=settings)
        return await box.session(), box.close

    async def scene() -> bytes:
        session, close = await open_one()
        gc.collect()
        try:
            await session.run("x = 6")
            return (await session.run("x * 7")).displays[0].content
        finally:
            await close()

    assert asyncio.run(scene()) == b"42"


def test_a_forked_child_may_not_use_a_session(box: belljar.Sandbox) -> None:
    with box.session() as session:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside threads: that is what is tried
            child = os.fork()
        if not child:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(30)  # whatever happens, it ends
            try:
                session.run("1")
            except CallerError as error:
                os._exit(0 if "after a fork" in error.message else 1)
            os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert session.run("1").ok


@pytest.mark.parametrize("name", ["wait", "waits"])
def test_a_caller_that_does_not_wait_for_a_cell_gets_an_error(box: belljar.Sandbox, name: str) -> None:
    with box.session() as session:
        events = session.stream("print('runs', flush=True); import time; time.sleep(60)")
        next(event for event in events if isinstance(event, Output))
        asked: Any = {name: False}
        with pytest.raises(SessionBusy):
            session.run("1", **asked)
        events.close()


def test_an_unknown_keyword_is_named_as_python_names_it(box: belljar.Sandbox) -> None:
    asked: Any = {"foo": 1}
    with box.session() as session:
        for call, use in (
            ("run", lambda: box.run("1", **asked)),
            ("stream", lambda: list(box.stream("1", **asked))),
            ("session", lambda: box.session(**asked)),
            ("run", lambda: session.run("1", **asked)),
            ("stream", lambda: list(session.stream("1", **asked))),
        ):
            with pytest.raises(TypeError, match=rf"^{call}\(\) got an unexpected keyword argument 'foo'$"):
                use()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        pytest.param(5, "content must be a string or bytes, not int", id="number"),
        pytest.param("\ud83d", "content has a lone surrogate", id="no_text"),
    ],
)
def test_what_cannot_be_in_a_file_is_refused(box: belljar.Sandbox, content: Any, said: str) -> None:
    with box.session() as session, pytest.raises(InvalidExecution, match=said):
        session.write_file("x", content)


def test_the_example_finds_a_board_by_branching(repository: Path) -> None:
    finished = subprocess.run(
        [sys.executable, "examples/backtracking.py"],
        cwd=repository,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    lines = finished.stdout.splitlines()
    assert lines[:6] == [".Q....", "...Q..", ".....Q", "Q.....", "..Q...", "....Q."]
    assert lines[7:13] == [f"{row} {column}" for row, column in enumerate((1, 3, 5, 0, 2, 4))]
    assert lines[-1] == "and the session it all began with: []"
