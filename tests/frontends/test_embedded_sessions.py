"""Sessions from Python: blocking and asynchronous, and the example that searches by branching."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import belljar
from belljar.contract.errors import CallerError, Draining, SessionEnded
from belljar.contract.execution import Finished
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
    with pytest.raises(Draining):
        session.run("x")


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
