"""Many runs of every kind leave nothing behind, and a killed process of Belljar ends no run."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import secrets
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

import belljar
from belljar.contract.execution import Output
from belljar.settings import Settings

if TYPE_CHECKING:
    from tests.conftest import Host, Process

RUNS = 300
AT_ONCE = 16
ROUNDS = 3  # one round cannot distinguish a leak from warming up

FORK_BOMB = """
import os
while True:
    try:
        os.fork()
    except OSError:
        pass
"""
HOARDING_CHILDREN = """
import os
for _ in "abc":
    os.fork()
kept = bytearray(b"x") * (9 << 20)
os.read(os.pipe()[0], 1)
"""
DAEMON = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(99)
"""
OWN_SERVER = """
import socket
server = socket.create_server(("127.0.0.1", 0))
socket.create_connection(server.getsockname())
"""
SYSTEM_V = """
import ctypes
libc = ctypes.CDLL(None)
libc.shmget(7, 1 << 20, 0o1666)
libc.semget(7, 3, 0o1666)
"""
SOCKETS_THAT_HOLD_EACH_OTHER = """
import array, socket
a, b = socket.socketpair()
a.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [a.fileno(), b.fileno()]))])
"""
HOARDS = "kept = bytearray(b'x') * (99 << 20)"
WAITS = "import time; print('begun', flush=True); time.sleep(99)"


class Kind(NamedTuple):
    """A program, the options of its request, and the status it must end with."""

    name: str
    code: str
    asked: dict[str, Any]
    expected: str


KINDS = [
    Kind("says hello", "print('hello')", {}, "ok"),
    Kind("reads", "import sys; print(len(sys.stdin.read()))", {"stdin": "x" * 200_000}, "ok"),
    Kind("does not read", "print('no')", {"stdin": "x" * 200_000}, "ok"),
    Kind("has files", "open('out', 'w').write('x')", {"files": {"a/b": "c"}, "artifacts": ["**"]}, "ok"),
    Kind("is large", "#" * 200_000 + "\nprint(1)", {}, "ok"),
    Kind("fails", "1/0", {}, "failed"),
    Kind("exits", "raise SystemExit(3)", {}, "failed"),
    Kind("crashes", "import os; os.abort()", {}, "crashed"),
    Kind("is denied", "import ctypes; ctypes.CDLL(None).syscall(0x40000000)", {}, "denied"),
    Kind("spins", "while True: pass", {"timeout": 0.1}, "timed_out"),
    Kind("sleeps", "import time; time.sleep(99)", {"timeout": 0.2}, "timed_out"),
    Kind("stops itself", "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)", {"timeout": 0.15}, "timed_out"),
    Kind("hoards", HOARDS, {"memory_mb": 24}, "out_of_memory"),
    Kind("hoards in children", HOARDING_CHILDREN, {"memory_mb": 32, "timeout": 9}, "out_of_memory"),
    Kind("floods", "while True: print('x' * 9999)", {"timeout": 20}, "output_limit"),
    Kind("forks", "import os\nfor _ in range(9):\n if os.fork() == 0: os._exit(0)", {}, "ok"),
    Kind("forks all it can", FORK_BOMB, {"timeout": 0.2}, "timed_out"),
    Kind("daemonises", DAEMON, {}, "ok"),
    Kind("talks to itself", OWN_SERVER, {}, "ok"),
    Kind("leaves memory", SYSTEM_V, {}, "ok"),
    Kind("leaves sockets", SOCKETS_THAT_HOLD_EACH_OTHER, {}, "ok"),
    Kind("is cancelled", WAITS, {}, "cancelled"),
    Kind("is left by its reader", WAITS, {}, "left"),
    Kind("is read to its end", "print('x' * 300_000)", {}, "read"),
]


@pytest.fixture
def own(settings: Settings, tmp_path: Path) -> Settings:
    """Settings that no other sandbox of this session shares, with a low flood limit."""
    jail = dataclasses.replace(
        settings.jail,
        cgroup_parent=f"{settings.jail.cgroup_parent}-{secrets.token_hex(4)}",
        uid_base=settings.jail.uid_base // 4,  # below those of every other sandbox
    )
    return dataclasses.replace(
        settings,
        runtime_dir=tmp_path / "run",
        jail=jail,
        pool=dataclasses.replace(settings.pool, max_running=AT_ONCE, jail_seconds=0.2),
        request=dataclasses.replace(settings.request, flood_bytes=2 << 20),
    )


async def run_one(box: belljar.AsyncSandbox, kind: Kind) -> str:
    """Run one program as its kind requires; return the status it ended with."""
    if kind.expected in ("left", "read"):
        async with contextlib.aclosing(box.stream(kind.code, **kind.asked)) as events:
            async for event in events:
                if kind.expected == "left" and isinstance(event, Output):
                    return "left"
        return "read"
    if kind.expected == "cancelled":
        task = asyncio.create_task(box.run(kind.code, **kind.asked))
        await asyncio.sleep(0.05)  # anywhere between the queue and the middle of the program
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            return str((await task).status)
        return "cancelled"
    return str((await box.run(kind.code, **kind.asked)).status)


async def run_mixture(box: belljar.AsyncSandbox, count: int) -> tuple[Counter[str], int, int]:
    """Run many programs, AT_ONCE of them at a time; return failures and the maximum of descriptors and tasks."""
    waiting = iter(KINDS[number % len(KINDS)] for number in range(count))
    wrong: Counter[str] = Counter()
    most_descriptors = most_tasks = 0

    async def work() -> None:
        for kind in waiting:
            try:
                ended = await run_one(box, kind)
            except belljar.BelljarError as error:
                ended = repr(error)
            if ended != kind.expected:
                wrong[f"{kind.name}: {ended}"] += 1

    async def watch() -> None:
        nonlocal most_descriptors, most_tasks
        while True:
            most_descriptors = max(most_descriptors, len(os.listdir("/proc/self/fd")))
            most_tasks = max(most_tasks, len(asyncio.all_tasks()))
            await asyncio.sleep(0.02)

    watcher = asyncio.create_task(watch())
    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(work())
    watcher.cancel()
    return wrong, most_descriptors, most_tasks


@pytest.mark.timeout(240)
def test_nothing_grows_with_mixed_runs_and_nothing_is_left_after_closing(own: Settings, host: Host) -> None:
    outside = type(host)(own)
    before = outside.settled_leftovers()
    seen: list[Any] = []

    async def main() -> None:
        async with belljar.AsyncSandbox(settings=own) as box:
            for _ in range(ROUNDS):
                wrong, most_descriptors, most_tasks = await run_mixture(box, RUNS // ROUNDS)
                assert not wrong
                assert most_descriptors < len(before.descriptors) + 80 * AT_ONCE
                assert most_tasks < 8 * AT_ONCE
                await until_idle(box)
                seen.append((await asyncio.to_thread(outside.settled_leftovers)).counts())
                assert len(asyncio.all_tasks()) < 8

    asyncio.run(main())
    outside.assert_nothing_new(before, "processes", "mounts", "cgroups", "descriptors")
    first, last = seen[0], seen[-1]
    assert last.mounts == first.mounts
    assert last.files == first.files
    for name in ("processes", "cgroups", "descriptors"):
        # Ready guests and idle jails come and go within the limits of the pool; a leak would grow with every run.
        assert getattr(last, name) < getattr(first, name) + RUNS // 10, (name, seen)


async def until_idle(box: belljar.AsyncSandbox) -> None:
    async with asyncio.timeout(30):
        while box.facts()["running"]:
            await asyncio.sleep(0.01)


# ---- killed processes of Belljar


@pytest.fixture
def outside(own: Settings, host: Host) -> Iterator[Host]:
    """The view of this sandbox only; no other uses its range of uids."""
    yield type(host)(own)


@contextlib.asynccontextmanager
async def opened(own: Settings) -> AsyncIterator[tuple[belljar.AsyncSandbox, set[int]]]:
    """A sandbox and its keepers, which were started with it."""
    before = set(children_of(os.getpid()))
    async with belljar.AsyncSandbox(settings=own) as box:
        yield box, set(children_of(os.getpid())) - before


def children_of(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            found += map(int, (task / "children").read_text().split())
    return found


def find_own(host: Host, keepers: set[int], role: str) -> list[Process]:
    """Return the sandbox's processes of one role, found by their place in the process tree."""
    wardens = [pid for keeper in keepers for pid in children_of(keeper)]
    if role == "keeper":
        pids_of_role = keepers
    elif role == "warden":
        pids_of_role = set(wardens)
    else:
        pids_of_role = {pid for warden in wardens for pid in children_of(warden)}
    everyone = [process for process in host.processes() if process.pid in pids_of_role]
    if role == "zygote":  # guests of a dead zygote are children of the warden, too, but have other uids
        root = {process.uid for process in host.processes() if process.pid in wardens}
        return [process for process in everyone if "main.py" in process.command and process.uid in root]
    if role == "jail_init":
        return [process for process in everyone if process.command.endswith("sleep infinity")]
    return everyone


SLOW = "import time; time.sleep(0.6); print('done')"


async def all_begun(box: belljar.AsyncSandbox, count: int) -> None:
    async with asyncio.timeout(30):
        while box.facts()["running"] < count:
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)


def test_a_killed_zygote_ends_no_run(own: Settings, outside: Host) -> None:
    async def main() -> None:
        async with opened(own) as (box, keepers):
            tasks = [asyncio.create_task(box.run(SLOW)) for _ in range(8)]
            await all_begun(box, 8)
            (zygote,) = find_own(outside, keepers, "zygote")
            os.kill(zygote.pid, signal.SIGKILL)
            outcomes = await asyncio.gather(*tasks)
            assert [(outcome.status, outcome.stdout) for outcome in outcomes] == [("ok", "done\n")] * 8
            assert (await box.run("print('hello')")).stdout == "hello\n"
            (fresh,) = find_own(outside, keepers, "zygote")
            assert fresh.pid != zygote.pid
            assert box.facts()["sandbox"]["zygotes_replaced"] == 1

    asyncio.run(main())


def test_repeatedly_killed_zygotes_change_no_outcome(own: Settings, outside: Host) -> None:
    async def main() -> None:
        async with opened(own) as (box, keepers):
            killed = 0
            programs = [f"print({number})\nraise SystemExit({number % 7})" for number in range(120)]
            numbers = iter(range(120))
            async with contextlib.aclosing(box.run_many(programs, max_in_flight=8)) as outcomes:
                async for outcome in outcomes:
                    number = next(numbers)
                    assert (outcome.stdout, outcome.exit_code) == (f"{number}\n", number % 7)
                    if number % 30 == 29:
                        for zygote in find_own(outside, keepers, "zygote"):
                            os.kill(zygote.pid, signal.SIGKILL)
                            killed += 1
            assert killed >= 3
            assert (await box.run("print('hello')")).stdout == "hello\n"

    asyncio.run(main())


def test_exit_codes_and_limits_are_right_without_the_zygote(own: Settings, outside: Host) -> None:
    kinds = [
        ("import time; time.sleep(0.5); raise SystemExit(3)", {}, ("failed", 3, None)),
        ("import os, time; time.sleep(0.5); os.abort()", {}, ("crashed", None, "SIGABRT")),
        ("import time; time.sleep(99)", {"timeout": 0.8}, ("timed_out", None, "SIGKILL")),
        (
            "import time; time.sleep(0.5); x = bytearray(b'x') * (99 << 20)",
            {"memory_mb": 32},
            ("out_of_memory", None, "SIGKILL"),
        ),
    ]

    async def main() -> None:
        async with opened(own) as (box, keepers):
            tasks = [asyncio.create_task(box.run(code, **asked)) for code, asked, _ in kinds]
            await all_begun(box, len(kinds))
            (zygote,) = find_own(outside, keepers, "zygote")
            os.kill(zygote.pid, signal.SIGKILL)
            for task, (_, _, expected) in zip(tasks, kinds, strict=True):
                outcome = await task
                assert (outcome.status, outcome.exit_code, outcome.signal) == expected

    asyncio.run(main())


@pytest.mark.parametrize("role", ["warden", "keeper"])
def test_a_killed_warden_is_replaced_and_its_runs_repeated_or_refused(own: Settings, outside: Host, role: str) -> None:
    async def main() -> None:
        async with opened(own) as (box, keepers):
            tasks = [asyncio.create_task(box.run(SLOW)) for _ in range(4)]
            await all_begun(box, 4)
            (process,) = find_own(outside, keepers, role)
            os.kill(process.pid, signal.SIGKILL)
            for outcome in await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 60):
                if isinstance(outcome, BaseException):
                    assert isinstance(outcome, belljar.SandboxFault), outcome
                else:
                    assert (outcome.status, outcome.stdout) == ("ok", "done\n")
            for _ in range(3):
                assert (await asyncio.wait_for(box.run("print('hello')"), 60)).stdout == "hello\n"

    asyncio.run(main())


def test_a_killed_jail_init_affects_only_the_runs_of_its_jail(own: Settings, outside: Host) -> None:
    async def says_hello(box: belljar.AsyncSandbox) -> bool:
        with contextlib.suppress(belljar.SandboxFault):
            return (await box.run("print('hello')")).stdout == "hello\n"
        return False

    async def main() -> None:
        async with opened(own) as (box, keepers):
            for _ in range(5):
                for jail_init in find_own(outside, keepers, "jail_init"):
                    os.kill(jail_init.pid, signal.SIGKILL)
                async with asyncio.timeout(30):
                    while not await says_hello(box):  # until all deaths have been reported
                        pass

    asyncio.run(main())


def test_a_hanging_zygote_does_not_block_runs_forever(own: Settings, outside: Host) -> None:
    async def main() -> None:
        async with opened(own) as (box, keepers):
            await box.run("print('warm')")
            (zygote,) = find_own(outside, keepers, "zygote")
            os.kill(zygote.pid, signal.SIGSTOP)
            try:
                for _ in range(2 * AT_ONCE):  # some with a guest forked ahead, some without
                    with contextlib.suppress(belljar.SandboxFault):
                        await asyncio.wait_for(box.run("print('hello')"), 30)
                assert (await asyncio.wait_for(box.run("print('hello')"), 30)).stdout == "hello\n"
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(zygote.pid, signal.SIGCONT)

    asyncio.run(main())


def test_a_sandbox_abandoned_while_running_leaves_nothing(own: Settings, host: Host) -> None:
    outside = type(host)(own)
    before = outside.settled_leftovers()

    async def main() -> None:
        async with belljar.AsyncSandbox(settings=own) as box:
            for _ in range(8):
                asyncio.create_task(box.run(SLOW))  # noqa: RUF006  abandoned on purpose
            await all_begun(box, 8)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(main())
    outside.assert_nothing_new(before, "processes", "mounts", "cgroups", "descriptors")
