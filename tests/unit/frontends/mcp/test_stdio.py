"""`belljar mcp` as clients use it: the handshake of every revision, messages on its streams, and how it stops."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.conftest import Host
    from tests.unit.frontends.mcp.conftest import Plug, Wire

WAITS = "import subprocess; subprocess.run(['sleep', '98.765'])"  # a command line that the host can recognise
OLDER = ("2025-03-26", "2025-06-18", "2025-11-25")


def test_on_a_terminal_it_says_that_it_waits_for_a_client(command: list[str], environ: dict[str, str]) -> None:
    ours, theirs = os.openpty()
    with subprocess.Popen(
        command, env=environ, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    ) as process:
        try:
            assert process.stderr is not None
            assert b"waiting for an MCP client" in process.stderr.readline()
            process.terminate()
            process.wait(60)
        finally:
            process.kill()
            os.close(theirs)
            os.close(ours)


@pytest.mark.parametrize("revision", OLDER)
def test_the_handshake_uses_the_revision_of_an_older_client(plug: Plug, revision: str) -> None:
    with plug() as wire:
        answer = wire.greet(revision)
        assert answer["protocolVersion"] == revision
        assert answer["serverInfo"]["name"] == "belljar"
        assert set(answer["capabilities"]) >= {"tools", "resources", "prompts"}
        assert wire.call("run_python_code", code="print(6 * 7)")["content"] == [{"type": "text", "text": "42"}]


def test_the_newest_client_needs_no_handshake(plug: Plug) -> None:
    with plug() as wire:
        answer = wire.greet("2026-07-28")
        assert answer["supportedVersions"] == ["2026-07-28"]
        result = wire.call("run_code", code="print(6 * 7)")
        assert result["resultType"] == "complete"
        assert result["structuredContent"]["stdout"] == "42\n"


def test_the_first_response_takes_less_than_a_second_of_cpu_time(plug: Plug) -> None:
    """On a slow machine it may take as long as importing the SDK alone, and a fifth more."""

    def answered() -> float:
        with plug() as wire:
            wire.greet()
            fields = Path(f"/proc/{wire.process.pid}/stat").read_text().rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def imported() -> float:
        code = "import mcp.server.lowlevel.server, resource as r; print(sum(r.getrusage(r.RUSAGE_SELF)[:2]))"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=True)
        return float(done.stdout)

    used, reference = zip(*((answered(), imported()) for _ in range(3)), strict=True)
    assert min(used) < max(1.0, 1.2 * min(reference))


def test_only_messages_are_on_standard_output(plug: Plug) -> None:
    with plug("--debug") as wire:
        wire.greet()
        wire.call("run_code", code="print('x'); import sys; print('y', file=sys.stderr)")
        assert wire.leave() == 0
        assert wire.noise == []
        assert wire.log, "--debug logs to standard error"


def test_malformed_messages_do_not_end_the_connection(plug: Plug) -> None:
    with plug() as wire:
        wire.greet()
        assert wire.process.stdin is not None
        wire.process.stdin.write(b'this is not JSON\n{"jsonrpc": "2.0", "id": 77}\n\xff\xfe\n[]\n')
        wire.process.stdin.flush()
        assert wire.call("run_code", code="print(1)")["isError"] is False


BROKEN_TEXT = [
    pytest.param(rb"print(1) # \ud83d", -32602, "lone surrogate (U+D83D)", id="high_surrogate"),
    pytest.param(rb"print(1) # \uDE00", -32602, "lone surrogate (U+DE00)", id="low_surrogate"),
    pytest.param(b"print(1) # \xff", -32700, "not UTF-8", id="not_utf_8"),
]


@pytest.mark.parametrize(("code", "number", "message"), BROKEN_TEXT)
def test_a_request_with_invalid_text_gets_an_error(wire: Wire, code: bytes, number: int, message: str) -> None:
    call = b'"method": "tools/call", "params": {"name": "run_code", "arguments": {"code": "%b"}}}\n' % code
    assert wire.process.stdin is not None
    wire.process.stdin.write(b'{"jsonrpc": "2.0", ' + call + b'{"jsonrpc": "2.0", "id": 7001, ' + call)
    wire.process.stdin.flush()
    error = wire.finish(7001)["error"]
    assert error["code"] == number
    assert message in error["message"]
    assert wire.call("run_code", code=r"print('\U0001f600', r'\ud83d')")["content"][0]["text"] == "\U0001f600 \\ud83d"


@pytest.mark.parametrize("is_closed", [pytest.param(False, id="dev_null"), pytest.param(True, id="closed")])
@pytest.mark.parametrize("name", ["mcp", "code-sandbox-mcp"])
def test_it_exits_without_a_client(command: list[str], environ: dict[str, str], name: str, is_closed: bool) -> None:
    entry = "import sys; from belljar.frontends.cli.mcp import be_code_sandbox; sys.exit(be_code_sandbox())"
    start = command if name == "mcp" else [sys.executable, "-c", entry]
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" <&-', "sh", *start] if is_closed else start,
        stdin=subprocess.DEVNULL,
        env=environ,
        capture_output=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_fifty_concurrent_calls_get_their_own_responses(wire: Wire) -> None:
    numbers = [
        wire.begin("tools/call", {"name": "run_code", "arguments": {"code": f"print({at} ** 2)"}}) for at in range(50)
    ]
    texts = [wire.finish(number)["result"]["content"][0]["text"] for number in numbers]
    assert texts == [str(at**2) for at in range(50)]


def test_progress_is_reported_while_a_program_runs(wire: Wire) -> None:
    asked = {
        "name": "run_code",
        "arguments": {"code": "import time\nprint('first', flush=True)\ntime.sleep(1.5)\nprint('second')"},
    }
    wire.notifications.clear()
    wire.finish(wire.begin("tools/call", asked, meta={"progressToken": "mine"}))
    progress = [note["params"] for note in wire.notifications if note["method"] == "notifications/progress"]
    assert progress
    assert progress[0]["progressToken"] == "mine"
    assert progress[0]["total"] == 10
    assert progress[0]["message"] == "first"


def test_a_cancelled_call_ends_its_program(wire: Wire, host: Host) -> None:
    wire.call("run_code", code="print(1)")
    number = wire.begin("tools/call", {"name": "run_code", "arguments": {"code": WAITS, "timeout": 120}})
    host.wait_until(lambda: _runs(host), "the program runs")
    began = time.monotonic()
    wire.send({"method": "notifications/cancelled", "params": {"requestId": number, "reason": "changed my mind"}})
    host.wait_until(lambda: not _runs(host), "the program is gone", 10)
    assert time.monotonic() - began < 10
    assert wire.call("run_code", code="print('still here')")["content"][0]["text"] == "still here"


def test_a_client_that_dies_leaves_nothing_behind(plug: Plug, host: Host) -> None:
    before = _cgroups(host)
    with plug() as wire:
        wire.greet()
        for _ in range(4):
            wire.begin("tools/call", {"name": "run_code", "arguments": {"code": WAITS, "timeout": 120}})
        host.wait_until(lambda: len(_runs(host)) >= 4, "the programs run")
        family = _family(host, wire.process.pid)
        began = time.monotonic()
        assert wire.leave() == 0
        assert time.monotonic() - began < 15
    host.wait_until(lambda: not family & {process.pid for process in host.processes()}, "all processes are gone")
    host.wait_until(lambda: _cgroups(host) <= before, "its cgroups are gone")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_and_everything_it_runs(plug: Plug, host: Host, number: signal.Signals) -> None:
    before = _cgroups(host)
    with plug() as wire:
        wire.greet()
        wire.begin("tools/call", {"name": "run_code", "arguments": {"code": WAITS, "timeout": 120}})
        host.wait_until(lambda: _runs(host), "the program runs")
        family = _family(host, wire.process.pid)
        wire.process.send_signal(number)  # while its input stays open
        wire.process.wait(30)
    host.wait_until(lambda: not family & {process.pid for process in host.processes()}, "all processes are gone")
    host.wait_until(lambda: _cgroups(host) <= before, "its cgroups are gone")


def test_a_client_that_does_not_read_does_not_delay_the_exit(plug: Plug, host: Host) -> None:
    with plug() as wire:
        wire.greet()
        wire.call("run_code", code="print(1)")
        family = _family(host, wire.process.pid)
        wire.has_stopped_reading.set()
        for _ in range(20):
            asked = {"name": "run_code", "arguments": {"code": "print('x' * 900_000)"}}
            wire.begin("tools/call", asked)
        host.wait_until(lambda: _is_full(wire), "the pipe is full")
        wire.process.send_signal(signal.SIGTERM)
        wire.process.wait(30)
    host.wait_until(lambda: not family & {process.pid for process in host.processes()}, "all processes are gone")


def test_an_endless_line_ends_the_connection(plug: Plug) -> None:
    with plug("--set", "server.body_bytes=100000") as wire:
        wire.greet()
        assert wire.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it may exit before it has read everything
            os.write(wire.process.stdin.fileno(), b"x" * 300_000)
        assert wire.process.wait(30) == 0


def test_input_and_output_can_be_files(command: list[str], environ: dict[str, str], tmp_path: Any) -> None:
    greeting = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    lines = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": greeting},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
    ]
    file = tmp_path / "requests"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    output = tmp_path / "answers"
    with file.open("rb") as source, output.open("wb") as sink:
        subprocess.run(command, stdin=source, stdout=sink, stderr=subprocess.PIPE, env=environ, timeout=60, check=True)
    answers = [json.loads(line) for line in output.read_bytes().splitlines()]
    assert [answer["id"] for answer in answers] == [1]


def test_named_variables_are_passed_through_and_no_others(plug: Plug) -> None:
    code = "import os; print(sorted(name for name in os.environ if name.startswith('OURS')), os.environ.get('OURS_A'))"
    with plug("--pass-through-env", "OURS_A,OURS_MISSING", OURS_A="one", OURS_B="two") as wire:
        wire.greet()
        assert wire.call("run_code", code=code)["content"][0]["text"] == "['OURS_A'] one"
        assert wire.call("run_python_code", code=code)["content"][0]["text"] == "['OURS_A'] one"


def test_a_subset_of_tools_and_plain_results(plug: Plug) -> None:
    with plug("--tools", "run_code,code-sandbox", "--output", "plain") as wire:
        wire.greet()
        tools = wire.ask("tools/list")["tools"]
        assert [tool["name"] for tool in tools] == [
            "run_code",
            "run_python_code",
            "run_js_code",
            "run_javascript_code",
        ]
        assert all("outputSchema" not in tool for tool in tools)
        result = wire.call("run_code", code="print(1)")
        assert set(result) == {"content", "isError"}
        refused = wire.call("list_languages")
        assert refused["isError"] is True
        assert "Unknown tool: list_languages" in refused["content"][0]["text"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        pytest.param(["--tools", "run_cod"], "unknown MCP tool 'run_cod'", id="unknown_tool"),
        pytest.param(["--pass-through-env", "BELLJAR_X"], "BELLJAR_X", id="our_own_variable"),
        pytest.param(["--set", "mcp.output=loud"], "mcp.output", id="unknown_output"),
    ],
)
def test_invalid_options_are_reported_at_startup(
    command: list[str], environ: dict[str, str], options: list[str], words: str
) -> None:
    done = subprocess.run([*command, *options], stdin=subprocess.DEVNULL, env=environ, capture_output=True, timeout=60)
    assert done.returncode != 0
    assert done.stdout == b""
    assert words in done.stderr.decode()


def _family(host: Host, pid: int) -> set[int]:
    """The pids of a process and its descendants; without any, the test would prove nothing."""
    processes = list(host.processes())
    found = {pid}
    while more := {process.pid for process in processes if process.parent in found} - found:
        found |= more
    assert len(found) > 3
    return found


def _is_full(wire: Wire) -> bool:
    """Whether the pipe of its standard output is full."""
    assert wire.process.stdout is not None
    waiting = fcntl.ioctl(wire.process.stdout.fileno(), termios.FIONREAD, b"\0\0\0\0")
    return int.from_bytes(waiting, sys.byteorder) >= 60_000


def _cgroups(host: Host) -> set[str]:
    """The cgroup directories of running instances, in every hierarchy."""
    return {path for path in host.cgroup_directories() if Path(path).name.startswith("instance-")}


def _runs(host: Host) -> list[Any]:
    return [process for process in host.guest_processes() if process.command == "sleep 98.765"]
