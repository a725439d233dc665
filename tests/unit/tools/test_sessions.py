"""Tools in sessions: functions persist, and calls are counted per cell."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Iterable
from typing import Any

import pytest

import belljar
from belljar.backends.local import LocalSandbox
from belljar.backends.local.session.session import LocalSession
from belljar.contract.errors import Overloaded
from belljar.contract.execution import Execution, ToolAnswered, ToolCalled
from belljar.contract.sessions import SessionOrder
from belljar.contract.tools import ToolSpec
from belljar.environments import Environments
from belljar.settings import Settings
from belljar.tools.broker import Broker


def add(a: int, b: int = 2) -> int:
    """Add two numbers."""
    return a + b


def said(outcome: belljar.Outcome) -> str:
    assert outcome.status == "ok", (outcome.error, outcome.stderr)
    return outcome.stdout


def test_functions_persist_between_cells(tool_box: belljar.Sandbox) -> None:
    with tool_box.session(tools=[add]) as session:
        assert said(session.run("from tools import add\nx = add(1)\nprint(x)")) == "3\n"
        outcome = session.run("print(add(x), add(x, 10))")
        assert said(outcome) == "5 13\n"
        assert [(call.tool, call.ok) for call in outcome.tool_calls] == [("add", True)] * 2
        assert session.run("1").tool_calls == ()


def test_threads_of_a_cell_call_concurrently(tool_box: belljar.Sandbox) -> None:
    with tool_box.session(tools=[add]) as session:
        code = (
            "import tools\nfrom concurrent.futures import ThreadPoolExecutor\n"
            "with ThreadPoolExecutor(20) as pool:\n    print(sum(pool.map(tools.add, range(200))))"
        )
        assert said(session.run(code)) == f"{sum(range(200)) + 400}\n"


def test_calls_of_a_cell_are_streamed(tool_box: belljar.Sandbox) -> None:
    with tool_box.session(tools=[add]) as session:
        events = list(session.stream("import tools; tools.add(4)"))
        assert [type(each) for each in events if isinstance(each, ToolCalled | ToolAnswered)] == [
            ToolCalled,
            ToolAnswered,
        ]


def test_a_thread_left_behind_cannot_call_between_cells(tool_box: belljar.Sandbox) -> None:
    called = threading.Event()

    def note(value: Any) -> None:
        called.set()

    with tool_box.session(tools=[note]) as session:
        session.run(
            "import threading, time, tools\nheard = []\n"
            "def later():\n"
            "    time.sleep(0.5)\n"
            "    try:\n        tools.note(1)\n    except tools.ToolError as error:\n        heard.append(str(error))\n"
            "thread = threading.Thread(target=later, daemon=True); thread.start()"
        )
        assert not called.wait(1.5)
        assert "only while a program or cell runs" in said(session.run("thread.join(); print(heard)"))


def test_a_call_abandoned_with_its_cell_raises_in_its_thread(tool_box: belljar.Sandbox) -> None:
    begun, gate = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        gate.wait(60)

    def until_begun() -> bool:
        return begun.wait(20)

    with tool_box.session(tools=[wait, until_begun]) as session:
        code = (
            "import threading, tools\nheard = []\n"
            "def call():\n"
            "    try:\n        tools.wait()\n    except tools.ToolError as error:\n        heard.append(str(error))\n"
            "thread = threading.Thread(target=call, daemon=True); thread.start()\nprint(tools.until_begun())"
        )
        try:
            outcome = session.run(code, timeout=30)
            assert said(outcome) == "True\n"
            assert [(call.tool, call.ok) for call in outcome.tool_calls] == [("until_begun", True), ("wait", False)]
            told = said(session.run("thread.join(20); print(heard)", timeout=30))
        finally:
            gate.set()
    assert "wait: the call was cancelled, since the program or cell that made it has ended" in told


def test_an_interrupted_call_keeps_the_connection_usable(tool_box: belljar.Sandbox) -> None:
    gate = threading.Event()

    def wait() -> str:
        gate.wait(20)
        return "late"

    with tool_box.session(tools=[wait, add]) as session:
        assert session.run("import tools").ok
        outcome = session.run("tools.wait()", timeout=1.0)
        gate.set()
        assert outcome.status == "timed_out"
        assert said(session.run("print(tools.add(1))")) == "3\n"


def test_unknown_tools_are_refused(tool_box: belljar.Sandbox) -> None:
    with pytest.raises(belljar.CallerError, match="unknown tool 'nothing'"):
        tool_box.session(tools=["nothing"]).open()


def test_a_branch_has_its_own_connection(tool_box: belljar.Sandbox) -> None:
    with tool_box.session(tools=[add]) as session:
        assert said(session.run("import tools\nfrom tools import add\nx = add(1)")) == ""
        left, right = session.branch(2)
        with left, right:
            for number, each in enumerate((left, right, session)):
                outcome = each.run(f"print(add(x, {number}), tools.add(x))")
                assert said(outcome) == f"{3 + number} 5\n"
                assert [call.tool for call in outcome.tool_calls] == ["add", "add"]
            again = left.branch(1)[0]
            with again:
                assert said(again.run("print(add(10))")) == "12\n"


def test_a_branch_outlives_the_session_whose_functions_it_calls(tool_box: belljar.Sandbox) -> None:
    with tool_box.session(tools=[add]) as session:
        session.run("import tools")
        branch = session.branch(1)[0]
    with branch:
        assert said(branch.run("print(tools.add(2))")) == "4\n"


class Exhausted(Broker):
    """Cannot serve another connection, as in a process without free descriptors."""

    has_room = True

    def describe(self, keys: Iterable[str]) -> list[ToolSpec]:
        """The description of the tools for programs."""
        if not self.has_room:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super().describe(keys)


def test_a_branch_without_tools_leaves_nothing_behind(settings: Settings) -> None:
    async def scene() -> None:
        tools = Exhausted(settings.tools)
        environments = Environments(settings.state_dir, settings.environments)
        sandbox = LocalSandbox(settings, environments, print, tools)
        await sandbox.open()
        try:
            with tools.lending([add]) as keys:
                session = await sandbox.open_session(SessionOrder(tools=keys))
                assert isinstance(session, LocalSession)
                tools.has_room = False
                for _ in range(3):
                    with pytest.raises(Overloaded, match="no file descriptors left"):
                        await session.branch()
                assert session._process.family.members == {session._process}
                tools.has_room = True
                branch = await session.branch()
                outcome = await branch.run(Execution(code="import tools; print(tools.add(1))"))
                assert outcome.stdout == b"3\n"
                await branch.close()
                await session.close()
        finally:
            await sandbox.close()

    asyncio.run(scene())
