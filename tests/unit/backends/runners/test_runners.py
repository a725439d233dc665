"""Programs in runner processes: the same evidence as in the server, nothing lost, nothing left behind."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import inspect
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.backends.local import LocalSandbox
from belljar.backends.runners import RunnersSandbox
from belljar.backends.runners.wire import (
    MOMENT_SECONDS,
    Connection,
    pack_error,
    pack_settings,
    read_error,
    read_settings,
)
from belljar.contract import errors
from belljar.contract.errors import (
    BelljarError,
    InvalidExecution,
    JailSetupFailed,
    SandboxFault,
    UnknownEnvironment,
    ZygoteDied,
)
from belljar.contract.execution import Display, Evidence, Execution, Limits, Status, classify
from belljar.contract.files import File
from belljar.contract.restriction import Restriction
from belljar.environments import Environments
from belljar.settings import LlmSettings, ModelSettings, ServerSettings, Settings

SECRET = "a-secret-of-the-server"


def build(settings: Settings, count: int = 1, **options: Any) -> RunnersSandbox:
    environments = Environments(settings.state_dir, settings.environments)
    own = LocalSandbox(settings, environments, print, None, "")
    return RunnersSandbox(settings, environments, print, own, count, **options)


@contextlib.asynccontextmanager
async def opened(settings: Settings, count: int = 1, **options: Any) -> AsyncIterator[RunnersSandbox]:
    sandbox = build(settings, count, **options)
    await sandbox.open()
    try:
        yield sandbox
    finally:
        await sandbox.close()


async def open_and_close(sandbox: RunnersSandbox) -> None:
    await sandbox.open()
    await sandbox.close()


def runner_pids() -> list[int]:
    """Return the runners among the children of this process."""
    found: list[int] = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # the thread has ended since
            found += map(int, (task / "children").read_text().split())
    return [pid for pid in found if "runners.worker" in Path(f"/proc/{pid}/cmdline").read_text()]


class Listener:
    """A watcher that records its calls and can be paused."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.bytes = 0
        self.reads = asyncio.Event()
        self.reads.set()

    def started(self) -> None:
        self.events.append("started")

    def wrote(self, stream: str, chunk: bytes) -> None:
        self.events.append((stream, chunk))
        self.bytes += len(chunk)

    def displayed(self, display: Display) -> None:
        self.events.append(display.mime)

    def called(self, call: Any) -> None:
        raise AssertionError

    def answered(self, answer: Any) -> None:
        raise AssertionError

    @property
    def is_behind(self) -> bool:
        return not self.reads.is_set()

    async def caught_up(self) -> None:
        await self.reads.wait()


async def until(condition: Callable[[], object], what: str, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        await asyncio.sleep(0.01)


SMALL = Limits(wall_seconds=2, memory_bytes=64 << 20, output_bytes=1000)
PROGRAMS = {
    "ok": Execution(code="print(1)"),
    "nothing": Execution(code="pass"),
    "fails": Execution(code="print('before'); 1 / 0"),
    "exit_code": Execution(code="import sys; sys.exit(7)"),
    "signal": Execution(code="import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"),
    "not_utf8": Execution(code="import sys; sys.stdout.buffer.write(bytes(range(256)))"),
    "input": Execution(code="print(input(), *__import__('sys').argv[1:])", stdin=b"in\n", args=("a", "\u00e9")),
    "environ": Execution(code="import os; print(os.environ['GIVEN'])", env={"GIVEN": "yes"}),
    "files": Execution(code="print(open('d/f', 'rb').read())", files=(File(path="d/f", content=b"\x00\xff"),)),
    "artifacts": Execution(code="open('a.bin', 'wb').write(b'x' * 5_000_000)", artifacts=("*.bin",)),
    "cut": Execution(code="print('x' * 5000)", limits=SMALL),
    "too_slow": Execution(code="while True: pass", limits=dataclasses.replace(SMALL, wall_seconds=0.5)),
    "too_large": Execution(code="x = b'x' * (200 << 20)", limits=SMALL),
    "refused": Execution(code="import socket", restrict=Restriction(imports=("math",))),
    "picture": Execution(code="import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()"),
}
EXPECTED = {
    **dict.fromkeys(PROGRAMS, Status.OK),
    "fails": Status.FAILED,
    "exit_code": Status.FAILED,
    "signal": Status.CRASHED,
    "too_slow": Status.TIMED_OUT,
    "too_large": Status.OUT_OF_MEMORY,
    "refused": Status.DENIED,
}


def comparable(seen: Evidence) -> Evidence:
    """Remove what differs between any two runs."""
    return dataclasses.replace(
        seen, wall_seconds=0.0, cpu_seconds=0.0, memory_peak_bytes=0, oom_kills=seen.oom_kills > 0
    )


def test_evidence_is_the_same_as_from_a_local_sandbox(settings: Settings) -> None:
    async def main() -> None:
        async with opened(settings) as sandbox:
            for name, execution in PROGRAMS.items():
                elsewhere = await sandbox.run(execution)
                assert classify(elsewhere) is EXPECTED[name], (name, elsewhere)
                assert comparable(elsewhere) == comparable(await sandbox._own.run(execution)), name
                assert elsewhere.wall_seconds > 0, name
            assert len(runner_pids()) == 1

    asyncio.run(main())


def test_a_watcher_gets_everything_in_order(settings: Settings) -> None:
    code = "import sys, time\nprint(1)\ntime.sleep(1)\nprint(2, file=sys.stderr)\ntime.sleep(1)\nprint(3)"
    picture = "import matplotlib.pyplot as plt\nplt.plot([1])\nplt.show()\nprint('shown')"

    async def main() -> None:
        async with opened(settings) as sandbox:
            listener = Listener()
            seen = await sandbox.run(Execution(code=code), listener)
            assert listener.events == ["started", ("stdout", b"1\n"), ("stderr", b"2\n"), ("stdout", b"3\n")]
            assert (seen.stdout, seen.stderr) == (b"1\n3\n", b"2\n")
            listener = Listener()
            seen = await sandbox.run(Execution(code=picture), listener)
            assert "image/png" in listener.events
            assert [each.mime for each in seen.displays] == ["image/png"]

    asyncio.run(main())


def test_a_watcher_that_does_not_read_blocks_the_program(settings: Settings) -> None:
    """Its output is not buffered in the server's or the runner's memory."""
    limits = Limits(output_bytes=64 << 20, wall_seconds=30)
    code = "import sys\nfor _ in range(320): sys.stdout.write('x' * 100_000)"

    async def main() -> None:
        async with opened(settings) as sandbox:
            listener = Listener()
            listener.reads.clear()
            running = asyncio.create_task(sandbox.run(Execution(code=code, limits=limits), listener))
            await until(lambda: listener.bytes, "it writes")
            await asyncio.sleep(1.0)
            assert listener.bytes < 4 << 20, "the program continues although its output is not read"
            assert not running.done()
            listener.reads.set()
            seen = await running
            assert len(seen.stdout) == listener.bytes == 32_000_000
            assert not sandbox._runners[0]._pacing

    asyncio.run(main())


def test_cancelling_ends_the_program_first(settings: Settings, host: Any) -> None:
    async def main() -> None:
        async with opened(settings) as sandbox:
            await sandbox.run(Execution(code="print(1)"))
            code = "import os, time\nif os.fork():\n    time.sleep(60)\ntime.sleep(60)"
            listener = Listener()
            running = asyncio.create_task(sandbox.run(Execution(code=code), listener))
            await until(lambda: listener.events, "it starts")
            runner = sandbox._runners[0]
            assert runner.load == 1
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert runner.load == 0
            assert (await sandbox.run(Execution(code="print(2)"))).stdout == b"2\n"

    asyncio.run(main())


def test_cancelling_immediately_after_the_request(settings: Settings) -> None:
    """Both frames arrive together, so the program is cancelled before it has started."""

    async def main() -> None:
        async with opened(settings) as sandbox:
            for ticks in (*range(8), *range(8)):
                running = asyncio.create_task(sandbox.run(Execution(code="import time; time.sleep(60)")))
                for _ in range(ticks):
                    await asyncio.sleep(0)
                running.cancel()
                async with asyncio.timeout(20):
                    with pytest.raises(asyncio.CancelledError):
                        await running
            assert sandbox._runners[0].load == 0
            assert (await sandbox.run(Execution(code="print(2)"))).stdout == b"2\n"

    asyncio.run(main())


def test_no_outcome_is_lost_when_a_runner_dies(settings: Settings) -> None:
    async def main() -> None:
        async with opened(settings, 2) as sandbox:
            code = Execution(code="import time; time.sleep(1); print('alive')")
            running = [asyncio.create_task(sandbox.run(code)) for _ in range(6)]
            await until(lambda: sum(each.load for each in sandbox._runners) == 6, "all run")
            assert [each.load for each in sandbox._runners] == [3, 3]
            os.kill(runner_pids()[0], signal.SIGKILL)
            assert [(await each).stdout for each in running] == [b"alive\n"] * 6
            await until(lambda: len(sandbox._runners) == 2, "it is replaced")
            facts = sandbox.facts()
            assert (facts["runners"], facts["runners_replaced"], facts["sandbox_faults"]) == (2, 1, 0)

    asyncio.run(main())


def test_a_watched_program_that_is_lost_is_reported(settings: Settings) -> None:
    async def main() -> None:
        async with opened(settings) as sandbox:
            listener = Listener()
            running = asyncio.create_task(sandbox.run(Execution(code="import time; time.sleep(9)"), listener))
            await until(lambda: listener.events, "it starts")
            os.kill(runner_pids()[0], signal.SIGKILL)
            with pytest.raises(ZygoteDied):
                await running
            assert sandbox.facts()["sandbox_faults"] == 1
            assert (await sandbox.run(Execution(code="print(2)"))).stdout == b"2\n"

    asyncio.run(main())


def test_a_stuck_runner_is_replaced(settings: Settings) -> None:
    """A caller that waits for the end of a cancelled program is not blocked forever, either."""

    async def main() -> None:
        async with opened(settings, patience_seconds=6.0) as sandbox:
            (pid,) = runner_pids()
            os.kill(pid, signal.SIGSTOP)
            given_up = asyncio.create_task(sandbox.run(Execution(code="print(1)")))
            await asyncio.sleep(0.1)
            given_up.cancel()
            async with asyncio.timeout(60):
                assert (await sandbox.run(Execution(code="print(1)"))).stdout == b"1\n"
                with pytest.raises(asyncio.CancelledError):
                    await given_up
            assert not Path(f"/proc/{pid}").exists()
            assert sandbox.facts()["runners_replaced"] == 1
            await asyncio.sleep(7.0)  # an idle runner is not taken for stuck
            assert sandbox.facts()["runners_replaced"] == 1

    asyncio.run(main())


def test_nothing_is_left(settings: Settings, host: Any) -> None:
    async def main() -> None:
        async with opened(settings, 2) as sandbox:
            codes = ["print(1)", "import os\nif not os.fork():\n    import time; time.sleep(60)", "x = b'x' * 10**9"]
            runs = (sandbox.run(Execution(code=code, limits=SMALL)) for code in codes * 4)
            await asyncio.gather(*runs)
            running = asyncio.create_task(sandbox.run(Execution(code="import time; time.sleep(60)")))
            await until(lambda: any(each.load for each in sandbox._runners), "one runs")
        with pytest.raises(BelljarError):
            await running

    asyncio.run(main())  # creates what a first run creates once, such as the cgroup directory
    before = host.settled_leftovers()
    asyncio.run(main())
    host.assert_nothing_new(before)


def test_runners_end_with_a_killed_server(settings: Settings, host: Any, sources: Path) -> None:
    """Stuck runners end, too."""
    script = """
import asyncio, sys
from belljar.assembly import build_engine
from belljar.contract.request import ExecutionRequest
from belljar.engine.admission.request import admit
from belljar.settings import load

async def main():
    settings = load()
    engine = build_engine(settings, runners=2)
    await engine.open()
    print("open", flush=True)
    await engine.run(admit(settings, ExecutionRequest("import time; time.sleep(60)", timeout=60)))

asyncio.run(main())
"""
    before = host.settled_leftovers()
    environ = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(sources),
        "BELLJAR_STATE_DIR": str(settings.state_dir),
        "BELLJAR_RUNTIME_DIR": str(settings.runtime_dir),
        "BELLJAR_JAIL_UID_BASE": str(settings.jail.uid_base),
        "BELLJAR_JAIL_CGROUP_PARENT": settings.jail.cgroup_parent,
    }
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environ, text=True) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "open\n"
        ours = [each.pid for each in host.processes() if each.parent == server.pid and "runners.worker" in each.command]
        assert len(ours) == 2
        os.kill(ours[0], signal.SIGSTOP)
        server.kill()
    host.assert_nothing_new(before, "processes")
    host.wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in ours), "so are the runners")


def test_a_runner_knows_no_secret(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    monkeypatch.setenv("BELLJAR_SERVER_API_KEY", SECRET)
    models = {"m": ModelSettings(url="http://127.0.0.1:1", authorization=SECRET)}
    server = dataclasses.replace(settings.server, api_key=SECRET)
    secretive = dataclasses.replace(settings, server=server, llm=dataclasses.replace(settings.llm, models=models))
    assert SECRET.encode() not in pack_settings(secretive)

    async def main() -> None:
        async with opened(secretive):
            (pid,) = runner_pids()
            for name in ("environ", "cmdline"):
                assert SECRET.encode() not in Path(f"/proc/{pid}/{name}").read_bytes()

    asyncio.run(main())


def test_settings_arrive_unchanged(settings: Settings) -> None:
    bare = dataclasses.replace(settings, server=ServerSettings(), llm=LlmSettings(), provenance={})
    assert read_settings(pack_settings(settings)) == bare


def test_a_runners_refusal_is_passed_on(settings: Settings) -> None:
    async def main() -> None:
        async with opened(settings) as sandbox:
            with pytest.raises(UnknownEnvironment, match="nowhere"):
                await sandbox.run(Execution(code="1", environment="nowhere"))
            huge = File(path="f", content=b"x" * (3 << 20))
            small = Limits(disk_bytes=1 << 20)
            with pytest.raises(InvalidExecution, match="ask for more disk_mb") as refused:
                await sandbox.run(Execution(code="1", files=(huge,), limits=small))
            assert refused.value.details == {"field": "files"}
            assert (await sandbox.run(Execution(code="print(2)"))).stdout == b"2\n"

    asyncio.run(main())


@pytest.mark.parametrize(
    "kind", [each for _, each in inspect.getmembers(errors, inspect.isclass) if issubclass(each, BelljarError)]
)
def test_every_error_travels(kind: type[BelljarError]) -> None:
    error = kind("step", "reason") if kind is JailSetupFailed else kind("message", field="f")
    if isinstance(error, errors.Overloaded):
        error.retry_after_seconds = 7.5
    received = read_error(pack_error(error))
    assert type(received) is kind
    assert (received.message, dict(received.details), vars(received)) == (
        error.message,
        dict(error.details),
        vars(error),
    )
    assert str(received) == str(error)


def test_an_unexpected_exception_becomes_a_sandbox_fault() -> None:
    received = read_error(pack_error(KeyError("x")))
    assert type(received) is SandboxFault
    assert received.message == "KeyError: 'x'"


class Written:
    """A transport that records what is written to it."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []

    def write(self, chunk: bytes) -> None:
        self.pieces.append(chunk)

    def close(self) -> None:
        pass


def connect_to(wire: Written, receive: Callable[[int, int, bytes], None] = lambda *_: None) -> Connection:
    connection = Connection(receive, lambda: None)
    connection.connection_made(wire)  # type: ignore[arg-type]
    return connection


@given(
    frames=st.lists(st.tuples(st.integers(0, 255), st.integers(0, 2**32 - 1), st.binary(max_size=40)), max_size=8),
    cuts=st.lists(st.integers(0, 400), max_size=12),
)
def test_frames_arrive_however_the_stream_is_cut(frames: list[tuple[int, int, bytes]], cuts: list[int]) -> None:
    async def main() -> None:
        events: list[tuple[int, int, bytes]] = []
        wire = Written()
        connection = connect_to(wire, lambda *frame: events.append(frame))
        for frame in frames:
            connection.send(*frame)
        await asyncio.sleep(0)
        sent = b"".join(wire.pieces)
        edges = [0, *sorted(cut for cut in cuts if cut < len(sent)), len(sent)]
        for start, end in itertools.pairwise(edges):
            connection.data_received(sent[start:end])
        assert events == frames

    asyncio.run(main())


def test_frames_that_can_wait_are_sent_together() -> None:
    async def main() -> None:
        wire = Written()
        connection = connect_to(wire)
        for number in range(6):
            connection.send_among(3, 1, number, b"x")
            await asyncio.sleep(0)
            assert connection.unsent == (number + 1) % 3
        assert [len(piece) for piece in wire.pieces] == [30, 30]

    asyncio.run(main())


@pytest.mark.parametrize("end", ["in_a_moment", "with_another", "by_leaving"])
def test_no_frame_waits_for_long(end: str) -> None:
    async def main() -> None:
        wire = Written()
        connection = connect_to(wire)
        connection.send_among(3, 1, 7, b"x")
        await asyncio.sleep(0)
        assert not wire.pieces
        if end == "in_a_moment":
            await until(lambda: wire.pieces, "it is sent")
        elif end == "with_another":
            connection.send(2, 8)
            await asyncio.sleep(0)
        else:
            connection.close()
        assert len(wire.pieces) == 1
        await asyncio.sleep(3 * MOMENT_SECONDS)
        assert len(wire.pieces) == 1  # and nothing twice

    asyncio.run(main())


def test_every_end_is_reported_when_all_slots_are_taken(settings: Settings) -> None:
    """Ends are then sent in batches, which saves CPU time."""

    async def main() -> None:
        async with opened(settings) as sandbox:
            places = asyncio.Semaphore(settings.pool.max_running)

            async def one(number: int) -> bytes:
                async with places:
                    code = f"print({number})"
                    return (await sandbox.run(Execution(code=code, limits=settings.default_limits))).stdout

            written = await asyncio.gather(*map(one, range(300)))
            assert written == [b"%d\n" % number for number in range(300)]

    asyncio.run(main())


def test_a_runner_that_cannot_start_says_why(settings: Settings, tmp_path: Path, host: Any) -> None:
    before = host.settled_leftovers()
    sandbox = build(settings)
    sandbox._settings = dataclasses.replace(settings, runtime_dir=tmp_path / "file" / "run")
    (tmp_path / "file").touch()
    with pytest.raises(SandboxFault, match="cannot use"):
        asyncio.run(open_and_close(sandbox))
    host.assert_nothing_new(before)
