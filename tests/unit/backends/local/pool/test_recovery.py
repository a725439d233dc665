"""Processes of Belljar die or get stuck while programs run: no result is lost, and nothing hangs."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import fcntl
import os
import signal
import stat
import struct
import termios
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import local_pool
import pytest
from local_pool import arguments, children, youngest_warden, zygotes
from server_process import Serve

import belljar
from belljar import Outcome, Sandbox, Status
from belljar.contract.errors import SandboxFault, SessionEnded, ZygoteDied
from belljar.contract.execution import Execution, Output
from belljar.settings import Settings, load


@pytest.fixture
def own_box() -> Iterator[Sandbox]:
    """A sandbox whose processes a test may kill or stop."""
    with belljar.Sandbox() as box:
        assert box.run("print(0)").ok
        yield box


def warden_and_zygote() -> tuple[int, int]:
    """The pids of the youngest sandbox; sandboxes of other tests may be open."""
    warden = youngest_warden()
    return warden, zygotes(warden)[0]


def kill_jail_inits(below: int) -> None:
    """Kill every jail_init below a process; find all of them first, because killing one changes the others."""
    for jail_init in list(find_jail_inits(below)):
        with contextlib.suppress(ProcessLookupError):  # its jail was destroyed meanwhile
            os.kill(jail_init, signal.SIGKILL)


def find_jail_inits(below: int) -> Iterator[int]:
    for child in children(below):
        if "infinity" in arguments(child):
            yield child
        else:
            yield from find_jail_inits(child)


def state_of(pid: int) -> str:
    """The state letter of a process, as in proc_pid_stat(5)."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def is_stopped(pid: int) -> bool:
    return state_of(pid) == "T"


def has_unread_messages() -> bool:
    """Whether a socket of this process holds data that its peer has not read: unix(7), SIOCOUTQ."""
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):  # closed meanwhile, or not a socket
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                (unread_bytes,) = struct.unpack("i", fcntl.ioctl(descriptor, termios.TIOCOUTQ, bytes(4)))
                if unread_bytes:
                    return True
    return False


def run_at_once(box: Sandbox, code: str, count: int) -> tuple[list[threading.Thread], list[Outcome]]:
    outcomes: list[Outcome] = []
    threads = [threading.Thread(target=lambda: outcomes.append(box.run(code, timeout=20))) for _ in range(count)]
    for thread in threads:
        thread.start()
    return threads, outcomes


def wait_until_running(box: Sandbox, count: int) -> None:
    deadline = threading.Event()
    for _ in range(1000):
        if box.facts()["running"] >= count:
            return
        deadline.wait(0.01)
    raise AssertionError("the programs did not start")


def test_runs_survive_the_death_of_their_zygote(own_box: Sandbox) -> None:
    threads, outcomes = run_at_once(own_box, "import time; time.sleep(1); print('alive')", 6)
    wait_until_running(own_box, 6)
    os.kill(warden_and_zygote()[1], signal.SIGKILL)
    for thread in threads:
        thread.join()
    assert [(each.status, each.stdout) for each in outcomes] == [(Status.OK, "alive\n")] * 6
    assert own_box.run("print(1)").stdout == "1\n"
    assert own_box.facts()["sandbox"]["zygotes_replaced"] == 1


def test_a_stuck_zygote_is_replaced_and_no_caller_notices(own_box: Sandbox) -> None:
    os.kill(warden_and_zygote()[1], signal.SIGSTOP)
    # More runs than ready guests, so that the zygote is needed. The first run waits until its time limit, because only
    # the zygote reports that a program has ended.
    outcomes = [own_box.run("print(1)", timeout=10) for _ in range(12)]
    assert [(each.status, each.stdout) for each in outcomes] == [(Status.OK, "1\n")] * 12
    assert own_box.facts()["sandbox"]["zygotes_replaced"] == 1


def test_the_pool_is_rebuilt_when_its_warden_dies(own_box: Sandbox) -> None:
    threads, outcomes = run_at_once(own_box, "import time; time.sleep(0.5); print('again')", 3)
    wait_until_running(own_box, 3)
    os.kill(warden_and_zygote()[0], signal.SIGKILL)
    for thread in threads:
        thread.join()
    assert [(each.status, each.stdout) for each in outcomes] == [(Status.OK, "again\n")] * 3


SLEEPING = "import time; print('up', flush=True); time.sleep(1); print('done')"


def test_programs_whose_jails_are_killed_from_outside_are_run_again(own_box: Sandbox) -> None:
    threads, outcomes = run_at_once(own_box, SLEEPING, 4)
    wait_until_running(own_box, 4)
    kill_jail_inits(youngest_warden())
    for thread in threads:
        thread.join()
    assert [(each.status, each.stdout) for each in outcomes] == [(Status.OK, "up\ndone\n")] * 4
    assert own_box.run("print(1)").stdout == "1\n"


def test_a_stream_whose_jail_is_killed_ends_with_a_fault_of_belljar(own_box: Sandbox) -> None:
    events = own_box.stream(SLEEPING)
    while not isinstance(next(events), Output):
        pass
    kill_jail_inits(youngest_warden())
    with pytest.raises(ZygoteDied, match="ended from outside"):
        list(events)


@pytest.mark.parametrize("is_branch", [False, True], ids=["session", "branch"])
def test_sessions_whose_jails_are_killed_from_outside_are_lost(own_box: Sandbox, host: Any, is_branch: bool) -> None:
    with own_box.session() as first, own_box.session() as idle:
        assert idle.run("x = 1").ok
        session = first.branch()[0] if is_branch else first
        events = session.stream(SLEEPING)
        while not isinstance(next(events), Output):
            pass
        kill_jail_inits(youngest_warden())
        with pytest.raises(ZygoteDied, match="session was lost"):
            list(events)
        for each in (session, idle):
            host.wait_until(partial(was_lost, each), "it has ended")


def test_a_session_killed_from_outside_is_lost_before_its_zygote_reports_it(own_box: Sandbox, host: Any) -> None:
    with own_box.session() as session:
        assert session.run("x = 1").ok
        stopped = zygotes(youngest_warden())
        resuming = threading.Timer(3.0, lambda: [os.kill(zygote, signal.SIGCONT) for zygote in stopped])
        for zygote in stopped:
            os.kill(zygote, signal.SIGSTOP)
        try:
            kill_jail_inits(youngest_warden())
            host.wait_until(
                lambda: all(state_of(each) == "Z" for zygote in stopped for each in children(zygote)), "dead"
            )
            resuming.start()  # the cell is answered once the end of the session is known
            with pytest.raises(SessionEnded) as ended:
                session.run("x")
            assert ended.value.details["reason"] == "lost"
        finally:
            resuming.join()


def was_lost(session: Any) -> bool:
    """Whether the session has ended and reports that it was lost; until the loss is known, a cell may fail first."""
    try:
        with contextlib.suppress(ZygoteDied):
            session.run("x = 1")
    except SessionEnded as error:
        return bool(error.details["reason"] == "lost")
    return False


def test_a_program_is_not_blamed_when_a_runners_jails_are_killed(serve: Serve, host: Any) -> None:
    with serve("serve", server__runners=1) as server:
        answers: list[Any] = []
        ask = threading.Thread(target=lambda: answers.append(server.ask("POST", "/v1/execute", {"code": SLEEPING})))
        ask.start()
        host.wait_until(lambda: has_program(server.process.pid), "it runs")
        kill_jail_inits(server.process.pid)
        ask.join()
        assert (answers[0].status, answers[0].body.get("status")) == (200, "ok"), answers


def test_a_program_is_not_blamed_when_a_plain_users_jails_are_killed(plain_box: Any, host: Any) -> None:
    outcomes: list[Any] = []
    run = threading.Thread(target=lambda: outcomes.append(plain_box.run(SLEEPING)))
    run.start()
    host.wait_until(lambda: has_program(plain_box.pid), "it runs")
    kill_jail_inits(plain_box.pid)
    run.join()
    assert (outcomes[0].status, outcomes[0].stdout) == ("ok", "up\ndone\n"), outcomes


def has_program(below: int) -> bool:
    """Whether a guest runs `SLEEPING`; guests without a program wait on a socket instead."""
    for child in children(below):
        with contextlib.suppress(OSError):
            if "main.py" in arguments(child) and children(child):
                waits = [Path(f"/proc/{each}/wchan").read_text() for each in children(child)]
                return any("nanosleep" in each for each in waits)
            if has_program(child):
                return True
    return False


@pytest.mark.parametrize(
    "code",
    [
        "import os; print('up', flush=True); os.kill(os.getpid(), 9)",
        "import os; print('up', flush=True)\nfor _ in range(5): os.fork()\nos.kill(-1, 9); os.kill(os.getpid(), 9)",
        "import os; print('up', flush=True)\nif os.fork() == 0: os.kill(os.getppid(), 9)\nimport time; time.sleep(9)",
    ],
    ids=["itself", "everyone", "its parent"],
)
def test_a_program_that_kills_itself_has_crashed_and_is_not_run_again(
    own_box: Sandbox, plain_box: Any, caplog: pytest.LogCaptureFixture, code: str
) -> None:
    for box in (own_box, plain_box):
        outcome = box.run(code)
        assert (outcome.status, outcome.signal, outcome.stdout) == ("crashed", "SIGKILL", "up\n")
    assert "running again" not in caplog.text


def test_a_program_whose_jail_is_lost_while_it_is_made_gets_another(settings: Settings) -> None:
    without_ready_guests = dataclasses.replace(settings, pool=dataclasses.replace(settings.pool, ready_guests=0))

    async def lose_the_jail() -> None:
        async with local_pool.opened(without_ready_guests) as (sandbox, pool):
            warden = warden_and_zygote()[0]
            os.kill(warden, signal.SIGSTOP)
            running = asyncio.create_task(sandbox.run(Execution(code="print(1)", limits=settings.default_limits)))
            async with asyncio.timeout(20):
                while not pool.guests._jails._being_made:
                    await asyncio.sleep(0.01)
            os.kill(warden, signal.SIGKILL)
            assert (await running).stdout == b"1\n"

    asyncio.run(lose_the_jail())


def test_a_stuck_warden_does_not_delay_a_result_forever(own_box: Sandbox) -> None:
    os.kill(warden_and_zygote()[0], signal.SIGSTOP)
    outcome = own_box.run("import os, time\nif os.fork() == 0: time.sleep(99)\nprint(1)", timeout=10)
    assert (outcome.status, outcome.stdout) == (Status.OK, "1\n")
    assert own_box.run("print(2)").stdout == "2\n"


def test_a_stuck_warden_does_not_delay_a_file_forever(own_box: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    with contextlib.suppress(SessionEnded), own_box.session() as session:
        assert session.run("x = 1").ok
        monkeypatch.setattr("belljar.backends.local.pool.warden_handle._ANSWER_SECONDS", 1.0)
        os.kill(warden_and_zygote()[0], signal.SIGSTOP)
        began = time.monotonic()
        with pytest.raises((SandboxFault, SessionEnded)):
            session.write_file("a", "content")
        assert time.monotonic() - began < 20
    monkeypatch.undo()
    assert own_box.run("print(2)").stdout == "2\n"


def test_a_zygote_is_rotated_without_losing_runs() -> None:
    settings = load(flags={"pool.zygote_forks": 20})
    with belljar.Sandbox(settings=settings) as box:
        outcomes = list(box.run_many(f"print({number})" for number in range(150)))
        assert [each.stdout for each in outcomes] == [f"{number}\n" for number in range(150)]
        deadline = time.monotonic() + 60
        seen: set[str] = set()
        while len(seen) < 2:  # a new zygote has a new hash seed, and takes a while to start
            assert time.monotonic() < deadline
            seen.add(box.run("print(hash('x'))").stdout)


def test_a_guest_released_without_a_program_is_freed_once(settings: Settings) -> None:
    """As when a run is refused after its lease. A descriptor closed twice may belong to something else by then."""
    trouble: list[object] = []

    async def lease_and_release() -> None:
        async with local_pool.opened(settings, trouble) as (_, pool):
            while not pool.facts()["ready_guests"]:
                await asyncio.sleep(0.01)
            guest = await pool.guests.lease("bare", settings.default_limits)
            pool.guests.release(guest)
            await guest.jail.gone
            while not guest.has_ended:
                await asyncio.sleep(0.01)

    asyncio.run(lease_and_release())
    assert not trouble


def test_a_jail_is_destroyed_if_its_request_is_cancelled_just_as_it_arrives(settings: Settings) -> None:
    """Only the cancelled request knows of the jail then, and its slot is about to be reused."""

    async def cancel_in_time() -> None:
        async with local_pool.opened(settings) as (sandbox, pool):
            async with asyncio.timeout(20):
                while pool.facts()["ready_guests"] < settings.pool.ready_guests or pool.guests._jails._being_made:
                    await asyncio.sleep(0.01)
            known = await pool.guests._jails.make()  # its slot is kept
            known.kill()
            await known.gone
            warden = warden_and_zygote()[0]
            before = await local_pool.settled_descriptors(), len(children(warden))
            making = asyncio.create_task(pool.guests._jails.make())
            receive = pool._warden._receive
            with pytest.MonkeyPatch.context() as patch:
                # Before the task has run and taken the answer.
                patch.setattr(pool._warden, "_receive", lambda *received: (receive(*received), making.cancel()))
                with pytest.raises(asyncio.CancelledError):
                    await making
            async with asyncio.timeout(10):
                while local_pool.descriptors() - before[0] or len(children(warden)) != before[1]:
                    await asyncio.sleep(0.01)
            assert (await sandbox.run(Execution(code="print(1)", limits=settings.default_limits))).stdout == b"1\n"

    asyncio.run(cancel_in_time())


def test_a_program_unread_by_its_guest_is_not_read_by_the_next(caplog: pytest.LogCaptureFixture, host: Any) -> None:
    """Successive guests of one jail use the same socket."""
    settings = load(flags={"pool.ready_guests": 1, "pool.max_running": 1})
    with belljar.Sandbox(settings=settings) as box:
        for number in range(5):
            assert box.run("print('before')").stdout == "before\n"
            for _ in range(1000):
                is_ready = box.facts()["sandbox"]["ready_guests"] == 1
                guests = children(
                    warden_and_zygote()[1]
                )  # after `is_ready`: otherwise the only guest may be about to end
                if is_ready and len(guests) == 1:
                    break
                time.sleep(0.01)
            (waiting,) = guests
            os.kill(waiting, signal.SIGSTOP)
            # Until it has stopped, it would still read the program.
            host.wait_until(partial(is_stopped, waiting), "it has stopped")
            threads, outcomes = run_at_once(box, f"print('unread {number}')", 1)
            wait_until_running(box, 1)
            host.wait_until(has_unread_messages, "the program is sent and unread")
            os.kill(waiting, signal.SIGKILL)
            for thread in threads:
                thread.join()
            assert [(each.status, each.stdout) for each in outcomes] == [(Status.OK, f"unread {number}\n")]
            assert [box.run(f"print({each})").stdout for each in range(6)] == [f"{each}\n" for each in range(6)]
    assert "ended unused" not in caplog.text  # logged if a guest reads the program of another


def test_a_session_is_not_blamed_when_the_maker_of_its_branch_dies(own_box: Sandbox) -> None:
    with own_box.session() as session:
        assert session.run("import os\nfor n in range(3000): open(str(n), 'w').write('x')").ok  # takes time to copy
        warden = warden_and_zygote()[0]
        failures: list[BaseException] = []

        def branch() -> None:
            try:
                session.branch()
            except SandboxFault as error:
                failures.append(error)

        branching = threading.Thread(target=branch)
        branching.start()
        while branching.is_alive():
            time.sleep(0.002)  # otherwise the sandbox, a thread of this process, hardly runs
            for maker in children(warden):
                if "warden" in arguments(maker) and copies_files(maker):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(maker, signal.SIGKILL)
        branching.join()
        assert "has died" in str(failures[0])
        with contextlib.closing(session.branch()[0]) as copy:
            assert copy.run("print(len(os.listdir()))").stdout == "3000\n"


def copies_files(pid: int) -> bool:
    """Whether this process has taken the session's uid, as the process does that copies the files."""
    try:
        return "\nUid:\t0\t" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def test_jails_lost_with_their_warden_leave_no_pipes(settings: Settings) -> None:
    before = open_pipes()
    with belljar.Sandbox(settings=settings) as box:
        for _ in range(3):
            with box.session() as session:
                # A process with much memory to free closes its pipes late.
                cell = session.stream("kept = b'x' * (200 << 20)\nprint('up')\nimport time; time.sleep(60)", timeout=60)
                while not isinstance(next(cell), Output):
                    pass
                os.kill(warden_and_zygote()[0], signal.SIGKILL)
                with pytest.raises(ZygoteDied):
                    list(cell)
    assert open_pipes() <= before


def open_pipes() -> set[str]:
    """The pipes that this process has open."""
    found = set()
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            found.add(os.readlink(f"/proc/self/fd/{descriptor}"))
    return {each for each in found if each.startswith("pipe:")}
