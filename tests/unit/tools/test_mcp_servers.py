"""Programs that call the tools of real MCP servers, over stdio and over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import belljar
from belljar.settings import Settings, ToolServerSettings, ToolSettings
from belljar.tools.broker import Broker
from belljar.tools.functions import as_tool
from belljar.tools.source import Changed, Tool

HERE = Path(__file__).parent
TRY = "import tools\ntry:\n    tools.{call}\nexcept tools.ToolError as error:\n    print(error)\nprint(tools.add(1))"
STDIO = (sys.executable, str(HERE / "mcp_tools.py"), "stdio")


def free_port() -> int:
    """A port without a listener."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    return port


@contextlib.contextmanager
def serving(kind: str, port: int = 0) -> Iterator[int]:
    """Serve the same tools on a port."""
    port = port or free_port()
    process = subprocess.Popen(
        [sys.executable, str(HERE / "mcp_tools.py"), kind, str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                assert time.monotonic() < deadline
                assert process.poll() is None
                time.sleep(0.05)
        yield port
    finally:
        process.kill()
        process.wait()


def open_box(
    settings: Settings, call_seconds: float = 20.0, start_seconds: float = 30.0, **servers: ToolServerSettings
) -> belljar.Sandbox:
    tools = ToolSettings(servers=servers, call_seconds=call_seconds, start_seconds=start_seconds)
    pool = dataclasses.replace(settings.pool, ready_guests=1)
    return belljar.Sandbox(settings=dataclasses.replace(settings, tools=tools, pool=pool))


@pytest.fixture(scope="module")
def stdio_box(settings: Settings) -> Iterator[belljar.Sandbox]:
    given = ToolServerSettings(command=STDIO, env=("BELLJAR_GIVEN=yes",))
    with open_box(settings, given=given) as box:
        yield box


def run(box: belljar.Sandbox, code: str, **options: Any) -> str:
    outcome = box.run(code, **{"tools": True, **options})
    assert outcome.status == "ok", outcome.stderr
    return outcome.stdout


@pytest.mark.parametrize("kind", ["stdio", "http", "sse"])
def test_every_tool_of_a_server_is_a_function(settings: Settings, kind: str) -> None:
    with contextlib.ExitStack() as stack:
        if kind == "stdio":
            server = ToolServerSettings(command=STDIO)
        else:
            path = "mcp" if kind == "http" else "sse"
            server = ToolServerSettings(url=f"http://127.0.0.1:{stack.enter_context(serving(kind))}/{path}")
        box = stack.enter_context(open_box(settings, tests=server))
        code = (
            "from tools import *\nfrom concurrent.futures import ThreadPoolExecutor\n"
            "print(add(1), add(1, 5), find_page('bell', top_k=2), search('bell'))\n"
            "with ThreadPoolExecutor(20) as pool:\n    print(sum(pool.map(add, range(100))))\n"
            "try:\n    fail()\nexcept ToolError as error:\n    print(error)\n"
        )
        assert run(box, code, timeout=60).splitlines() == [
            "3 6 {'organic': ['bell 0', 'bell 1']} {'organic': ['bell', 'bell']}",
            str(sum(range(100)) + 200),
            "fail: Error executing tool fail: no luck today",
        ]


def test_help_shows_the_servers_description(stdio_box: belljar.Sandbox) -> None:
    printed = run(stdio_box, "import tools\nhelp(tools.find_page)")
    assert "find_page(query: 'str', top_k: 'int' = 3)" in printed
    assert "Find pages about something." in printed


def test_a_server_gets_only_the_named_variables(stdio_box: belljar.Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(stdio_box, "import tools\nprint(tools.whoami())") == "{'BELLJAR_GIVEN': 'yes'}\n"


def test_only_requested_tools_are_available(stdio_box: belljar.Sandbox) -> None:
    code = "import tools\nprint(hasattr(tools, 'add'), hasattr(tools, 'pid'))"
    assert run(stdio_box, code, tools=["add"]) == "True False\n"


def test_a_server_that_dies_in_a_call_is_restarted(stdio_box: belljar.Sandbox) -> None:
    code = (
        "import tools\nbefore = tools.pid()\n"
        "try:\n    tools.die()\nexcept tools.ToolError as error:\n    print(error)\n"
        "print(tools.pid() != before, tools.add(1))"
    )
    printed = run(stdio_box, code, timeout=60).splitlines()
    assert printed[0].startswith("die: tool server 'given' went away during the call")
    assert printed[1] == "True 3"


def test_only_safe_calls_are_retried(settings: Settings, tmp_path: Path) -> None:
    code = "import tools\nbefore = tools.pid()\n"
    for tool in ("look", "put", "pay"):  # read-only; idempotent; unspecified
        code += f"try:\n    print(tools.{tool}({str(tmp_path / tool)!r}))\n"
        code += "except tools.ToolError as error:\n    print(error)\n"
    code += "print(tools.pid() != before)"
    with open_box(settings, call_seconds=60.0, tests=ToolServerSettings(command=STDIO)) as box:
        assert run(box, code, timeout=90).splitlines() == [
            "2",
            "2",
            "pay: tool server 'tests' went away during the call; it may have been carried out, so it was not repeated",
            "True",
        ]
    assert (tmp_path / "pay").read_text() == "x"


def test_a_call_that_was_not_delivered_waits_for_the_next_server(settings: Settings, host: Any) -> None:
    """With a URL, where a dead server is only noticed by the next call."""
    with contextlib.ExitStack() as stack:
        port = free_port()
        first = stack.enter_context(contextlib.ExitStack())
        first.enter_context(serving("http", port))
        server = ToolServerSettings(url=f"http://127.0.0.1:{port}/mcp")
        box = stack.enter_context(open_box(settings, call_seconds=60.0, tests=server))
        before = int(run(box, "import tools\nprint(tools.pid())"))
        first.close()
        assert is_dead(before)
        with ThreadPoolExecutor() as pool:
            answer = pool.submit(run, box, "import tools\nprint(tools.pid())", timeout=90)
            stack.enter_context(serving("http", port))
            assert int(answer.result()) != before


def is_dead(pid: int) -> bool:
    """Whether the process is a zombie or gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("Z")
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_a_server_that_dies_while_idle_is_restarted(
    stdio_box: belljar.Sandbox, host: Any, caplog: pytest.LogCaptureFixture
) -> None:
    before = int(run(stdio_box, "import tools\nprint(tools.pid())"))
    os.kill(before, signal.SIGKILL)
    host.wait_until(lambda: is_dead(before), "the server is dead")
    host.wait_until(lambda: "went away" in caplog.text, "its death is noticed")  # until then a call may be sent to it
    assert int(run(stdio_box, "import tools\nprint(tools.pid())", timeout=60)) != before


@pytest.mark.parametrize("kind", ["stdio", "http", "sse"])
def test_an_added_tool_is_available_to_the_next_program(settings: Settings, host: Any, kind: str) -> None:
    with contextlib.ExitStack() as stack:
        server = ToolServerSettings(command=STDIO)
        if kind != "stdio":
            path = "mcp" if kind == "http" else "sse"
            server = ToolServerSettings(url=f"http://127.0.0.1:{stack.enter_context(serving(kind))}/{path}")
        box = stack.enter_context(open_box(settings, tests=server))
        assert run(box, "import tools\nprint(hasattr(tools, 'extra'), tools.grow())") == "False grown\n"
        code = "import tools\nprint(tools.extra() if hasattr(tools, 'extra') else '')"
        host.wait_until(lambda: run(box, code) == "more\n", "the new tool is offered")
        assert run(box, "import tools\nprint(tools.add(1))") == "3\n"


def test_a_server_that_comes_back_with_other_tools(settings: Settings, host: Any, tmp_path: Path) -> None:
    flag = tmp_path / "extra"
    flag.touch()
    server = ToolServerSettings(command=STDIO, env=(f"EXTRA_TOOL={flag}",))
    with open_box(settings, tests=server) as box, box.session(tools=True) as session:
        assert session.run("import tools\nprint(tools.extra())").stdout == "more\n"
        flag.unlink()
        again = "try:\n    tools.die()\nexcept tools.ToolError:\n    print(tools.add(1))"
        assert session.run(again, timeout=60).stdout == "3\n"  # the next server answers
        printed = session.run("try:\n    tools.extra()\nexcept tools.ToolError as error:\n    print(error)").stdout
        assert printed == "extra no longer exists\n"
        assert run(box, "import tools\nprint(hasattr(tools, 'extra'), hasattr(tools, 'add'))") == "False True\n"


def test_a_server_that_hangs_costs_only_the_call(settings: Settings) -> None:
    with open_box(settings, call_seconds=1.0, tests=ToolServerSettings(command=STDIO)) as box:
        assert run(box, TRY.format(call="hang()")) == "hang: no answer within 1 s\n3\n"


def test_a_server_that_floods_costs_only_the_call(stdio_box: belljar.Sandbox) -> None:
    code = (
        "import tools\ntry:\n    tools.flood()\nexcept tools.ToolError as error:\n    print(error)\nprint(tools.add(1))"
    )
    printed = run(stdio_box, code, timeout=60).splitlines()
    assert "over the 4,194,304 allowed" in printed[0]
    assert printed[1] == "3"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        pytest.param("babble()", "babble: ", id="not_the_protocol"),
        pytest.param("halve()", "halve: no answer within 5 s", id="half_a_character"),
        pytest.param("crooked(1)", "crooked: TypeError: unhashable type: 'list'", id="invalid_schema"),
    ],
)
def test_a_server_that_sends_nonsense_costs_only_the_call(settings: Settings, call: str, message: str) -> None:
    broken = ToolServerSettings(command=(sys.executable, str(HERE / "broken_mcp.py")))
    with open_box(settings, call_seconds=5.0, broken=broken) as box:
        code = f"import tools\ntry:\n    print(tools.{call})\nexcept tools.ToolError as error:\n    print('E', error)"
        assert run(box, code, timeout=60).startswith(f"E {message}")
        assert box.run("print(1)").stdout == "1\n"


def test_a_name_clash_is_an_error_that_names_both_servers(settings: Settings) -> None:
    both = ToolServerSettings(command=STDIO)
    with pytest.raises(belljar.CallerError, match=r"two tools are named 'add'.*'first'.*'second'"):
        open_box(settings, first=both, second=both).open()


def test_a_prefix_resolves_a_name_clash(settings: Settings) -> None:
    first, second = ToolServerSettings(command=STDIO), ToolServerSettings(command=STDIO, prefix="other-")
    with open_box(settings, first=first, second=second) as box:
        assert run(box, "import tools\nprint(tools.pid() != tools.other_pid())") == "True\n"


@pytest.mark.parametrize(
    "server",
    [
        pytest.param(ToolServerSettings(command=("/nowhere/at-all",)), id="no_such_command"),
        pytest.param(ToolServerSettings(command=(sys.executable, "-c", "raise SystemExit(3)")), id="ends_at_once"),
        pytest.param(ToolServerSettings(url="http://127.0.0.1:9/mcp"), id="no_listener"),
    ],
)
def test_a_server_that_does_not_start_is_named(settings: Settings, server: ToolServerSettings) -> None:
    with pytest.raises(belljar.SandboxFault, match="tool server 'lost' does not start"):
        open_box(settings, lost=server).open()


LOUD = (
    "import sys; sys.stderr.write('x\\n' * 50_000 + 'no key\\nin the settings')"  # more than a pipe holds; no newline
)


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        pytest.param(
            (sys.executable, "-c", LOUD), r".+; it said:\n(x\n){8}no key\nin the settings$", id="it_ends_at_once"
        ),
        pytest.param(
            ("sh", "-c", "echo no key >&2; exec sleep 600"),
            r"no answer within 5 s; it said:\nno key$",
            id="it_never_answers",
        ),
    ],
)
def test_the_last_output_of_a_server_that_does_not_start_is_shown(
    settings: Settings, command: tuple[str, ...], reason: str
) -> None:
    with pytest.raises(belljar.SandboxFault, match=f"tool server 'lost' does not start: {reason}"):
        open_box(settings, start_seconds=5.0, lost=ToolServerSettings(command=command)).open()


def test_a_closed_server_leaves_nothing_behind(settings: Settings, host: Any) -> None:
    before = host.settled_leftovers()
    with open_box(settings, tests=ToolServerSettings(command=STDIO)) as box:
        pid = int(run(box, "import tools\nprint(tools.pid())"))
    assert not Path(f"/proc/{pid}").exists()
    host.assert_nothing_new(before, "processes")


def test_a_later_name_clash_is_logged_and_the_tool_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """After the start, a clash must not fail: existing tools stay, and other changes are applied."""

    def first() -> int:
        return 1

    def second() -> int:
        return 2

    class Shelf:
        async def open(self, changed: Changed) -> list[Tool]:
            self.changed = changed
            return []

        async def close(self) -> None:
            self.changed([as_tool(first, "one that is closed")])

    async def change() -> None:
        shelves = Shelf(), Shelf()
        broker = Broker(ToolSettings(), shelves)
        await broker.open()
        shelves[0].changed([as_tool(first, "shelf 0")])
        shelves[1].changed([as_tool(first, "shelf 1"), as_tool(second, "shelf 1")])
        assert [spec.name for spec in broker.specs] == ["first", "second"]
        shelves[0].changed([])
        assert broker.select(["*"]) == ("second",)
        await broker.close()
        assert broker.specs == []

    asyncio.run(change())
    assert "two tools are named 'first': one of shelf 0 and one of shelf 1" in caplog.text
