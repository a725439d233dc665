"""A process without free descriptors reports that, leaks nothing, and goes on once it has some again."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import local_pool
import pytest
from server_process import Serve

import belljar
from belljar.backends.local.languages.standby import Standby, Waiting
from belljar.backends.local.pool import descriptors
from belljar.contract.errors import BelljarError, Overloaded, SandboxFault
from belljar.jail import live_files
from belljar.jail.syscalls import NoDescriptors
from belljar.settings import Settings

AT_ONCE = 12


def test_without_descriptors_runs_are_refused_and_nothing_is_lost(settings: Settings) -> None:
    async def scene() -> None:
        async with belljar.AsyncSandbox(settings=settings) as box:
            await _run_all(box)
            before = len(os.listdir("/proc/self/fd"))
            with _no_descriptors_left():
                refused = [each for each in await _run_all(box) if isinstance(each, BaseException)]
            assert refused
            assert all(isinstance(each, BelljarError) for each in refused), refused
            for _ in range(3):
                outcomes = await _run_all(box)
                assert [each.stdout for each in outcomes if isinstance(each, belljar.Outcome)] == ["1\n"] * AT_ONCE
            assert len(os.listdir("/proc/self/fd")) < before + 3 * AT_ONCE

    asyncio.run(scene())


@pytest.mark.parametrize("spare", [0, 2, 4, 6])
def test_a_cell_without_descriptors_leaks_none_and_the_session_goes_on(settings: Settings, spare: int) -> None:
    without_ready_guests = dataclasses.replace(settings, pool=dataclasses.replace(settings.pool, ready_guests=0))

    async def scene() -> None:
        async with belljar.AsyncSandbox(settings=without_ready_guests) as box, box.session() as session:
            assert (await session.run("x = 1")).ok
            before = await local_pool.settled_descriptors()
            with _no_descriptors_left(spare):
                if spare < 6:  # for three pipes
                    with pytest.raises(Overloaded, match="no file descriptors left"):
                        await session.run("x")
                else:
                    assert (await session.run("x")).ok
            assert (await session.run("print(x)")).stdout == "1\n"
            async with asyncio.timeout(10):  # a jail's own pipes are closed when the last byte was read
                while local_pool.descriptors() - before:
                    await asyncio.sleep(0.01)

    asyncio.run(scene())


def test_requests_without_descriptors_are_refused_and_sessions_live_on(settings: Settings) -> None:
    """Only the request itself fails, however many of the descriptors of its answer still fit."""
    before = local_pool.descriptors()

    async def scene() -> None:
        async with belljar.AsyncSandbox(settings=_without_ready_guests(settings)) as box, box.session() as session:
            assert (await session.run("x = 1")).ok
            warden, refused = local_pool.youngest_warden(), 0
            for spare in (0, 3, 6, 9, 12, 16, 20, 24, 30):
                for ask in (box.session().open, partial(box.run, "print(1)"), session.branch):
                    await local_pool.settled_descriptors()
                    with _no_descriptors_left(spare):
                        (done,) = await asyncio.gather(ask(), return_exceptions=True)
                    opened = done if isinstance(done, list) else [done]  # branches come as a list
                    if isinstance(opened[0], belljar.AsyncSession):  # an unused cgroup was closed for it
                        await opened[0].close()
                    elif not isinstance(done, belljar.Outcome):
                        assert isinstance(done, Overloaded), (spare, ask, done)
                        assert "no file descriptors left" in str(done)
                        refused += 1
                assert (await session.run("print(x)")).stdout == "1\n"
            assert refused >= 20
            await _check_pool(box, warden)

    asyncio.run(scene())
    assert len(local_pool.descriptors()) <= len(before)


@pytest.mark.parametrize("role", ["warden", "zygote"])
def test_a_helper_without_descriptors_fails_only_the_request(settings: Settings, role: str) -> None:
    async def scene() -> None:
        async with belljar.AsyncSandbox(settings=_without_ready_guests(settings)) as box, box.session() as session:
            assert (await session.run("x = 1")).ok
            warden = local_pool.youngest_warden()
            helpers = [warden] if role == "warden" else local_pool.zygotes(warden)
            refused = 0
            for spare in (0, 1, 2, 3, 5, 8, 12):
                for helper in helpers:
                    local_pool.limit_descriptors(helper, len(os.listdir(f"/proc/{helper}/fd")) + spare)
                for asked in (box.session().open(), box.run("print(1)"), session.branch()):
                    (done,) = await asyncio.gather(asked, return_exceptions=True)
                    if isinstance(done, belljar.AsyncSession):
                        await done.close()
                    elif isinstance(done, list):
                        await done[0].close()
                    elif isinstance(done, belljar.Outcome):
                        assert done.stdout == "1\n"
                    else:
                        assert isinstance(done, (Overloaded, SandboxFault)), done
                        refused += 1
                assert (await session.run("print(x)")).stdout == "1\n"
            assert refused >= 4
            for helper in helpers:
                local_pool.limit_descriptors(helper, 2048)
            await _check_pool(box, warden)
            assert set(helpers) <= {warden, *local_pool.zygotes(warden)}, "no helper has died"

    asyncio.run(scene())


def _without_ready_guests(settings: Settings) -> Settings:
    return dataclasses.replace(settings, pool=dataclasses.replace(settings.pool, ready_guests=0))


async def _check_pool(box: belljar.AsyncSandbox, warden: int) -> None:
    """Check that programs and sessions run in the same pool, and that every jail in it is known."""
    assert (await box.run("print(2)")).stdout == "2\n"
    async with box.session() as another:
        assert (await another.run("print(3)")).stdout == "3\n"
    assert local_pool.youngest_warden() == warden
    async with asyncio.timeout(20):
        while len(local_pool.jail_inits(warden)) != box.facts()["sandbox"]["jails"]:
            await asyncio.sleep(0.01)


def test_a_server_without_descriptors_refuses_new_sessions_and_keeps_open_ones(serve: Serve) -> None:
    with serve("serve", server__runners=1) as server:
        old = [server.ask("POST", "/v1/sessions", {}).body["id"] for _ in range(4)]
        for number, session in enumerate(old):
            answer = server.ask("POST", f"/v1/sessions/{session}/execute", {"code": f"x = {number}"})
            assert answer.body["status"] == "ok", answer
        used = len(os.listdir(f"/proc/{server.process.pid}/fd"))
        before = resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (used + 90, before[1]))
        asked = [server.ask("POST", "/v1/sessions", {}) for _ in range(20)]
        refused = [each for each in asked if each.status != 201]  # some were ready
        assert len(refused) >= 10
        for each in refused:
            assert (each.status, each.body["error"]["code"]) == (429, "overloaded"), each
            assert f"its limit is {used + 90}" in each.text
        for number, session in enumerate(old):
            answer = server.ask("POST", f"/v1/sessions/{session}/execute", {"code": "print(x)"})
            assert answer.status == 200, answer
            assert answer.body["stdout"] == f"{number}\n"
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, before)
        new = server.ask("POST", "/v1/sessions", {})
        assert new.status in (200, 201), new
        answer = server.ask("POST", f"/v1/sessions/{old[0]}/execute", {"code": "print(x)"})
        assert answer.body["stdout"] == "0\n"


def test_jails_that_are_made_at_once_leave_the_reserve_alone(settings: Settings) -> None:
    async def scene() -> None:
        limits, room = settings.default_limits, 40  # for one jail
        async with local_pool.opened(_without_ready_guests(settings)) as (_, pool):
            used = most = len(os.listdir("/proc/self/fd"))
            before = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (used + room + descriptors.RESERVE, before[1]))
            try:
                leasing = [asyncio.create_task(pool.guests.lease("bare", limits)) for _ in range(10)]
                while not all(each.done() for each in leasing):
                    await asyncio.sleep(0)
                    most = max(most, len(os.listdir("/proc/self/fd")))
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, before)
            errors = [each.exception() for each in leasing]
            for each, error in zip(leasing, errors, strict=True):
                if error is None:
                    pool.guests.release(each.result())
            assert most <= used + room + 1, "and the listing itself"
            assert errors.count(None) == 1
            assert all(isinstance(each, Overloaded) for each in errors if each is not None), errors

    asyncio.run(scene())


def test_a_limit_too_low_for_the_pool_is_refused_at_startup(environ: dict[str, str]) -> None:
    def start(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        command = ["/bin/sh", "-c", 'ulimit -n 256; exec "$@"', "sh", sys.executable, "-m", "belljar", *arguments]
        return subprocess.run(
            command, env={**environ, **variables}, capture_output=True, text=True, check=False, timeout=60
        )

    pool = {"BELLJAR_POOL_MAX_RUNNING": "8", "BELLJAR_POOL_READY_GUESTS": "4"}
    for runners in ("0", "1"):
        ended = start("serve", BELLJAR_SERVER_RUNNERS=runners, **pool)
        assert ended.returncode != 0
        assert "listening" not in ended.stderr
        assert "the limit of open files is 256" in ended.stderr
        assert "LimitNOFILE=1024" in ended.stderr
    ended = start("run", "-c", "print(1)", **pool)
    assert (ended.returncode, ended.stdout) == (125, "")
    assert "LimitNOFILE=1024" in ended.stderr


@pytest.mark.parametrize("spare", [0, 1, 2])
def test_a_file_that_cannot_be_opened_is_not_reported_as_missing(settings: Settings, spare: int) -> None:
    async def scene() -> None:
        async with belljar.AsyncSandbox(settings=_without_ready_guests(settings)) as box, box.session() as session:
            await session.write_file("a/b", "kept")
            await local_pool.settled_descriptors()
            asked = [session.read_file("a/b"), session.files(), session.write_file("a/c", "x")]
            asked.append(session.delete_file("a/b"))
            with _no_descriptors_left(spare):
                done = [(await asyncio.gather(each, return_exceptions=True))[0] for each in asked]
            refused = [each for each in done if isinstance(each, BaseException)]
            assert len(refused) >= 3 - spare
            assert all(isinstance(each, Overloaded) for each in refused), done

    asyncio.run(scene())


def test_a_directory_that_cannot_be_opened_leaks_no_descriptor(tmp_path: Path) -> None:
    root = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)
    try:
        with _no_descriptors_left(spare=1), pytest.raises(NoDescriptors):
            live_files.write(root, "above/file", (b"x",))
        opened = [path for _, path in local_pool.descriptors() if path.startswith(str(tmp_path))]
        assert opened == [str(tmp_path)]
    finally:
        os.close(root)


def test_a_branch_closed_without_descriptors_still_ends(settings: Settings) -> None:
    async def scene() -> None:
        async with belljar.AsyncSandbox(settings=_without_ready_guests(settings)) as box, box.session() as session:
            assert (await session.run("x = 1")).ok
            (copy,) = await session.branch()
            pid = int((await copy.run("import os; print(os.getpid())")).stdout)
            await local_pool.settled_descriptors()
            closing = asyncio.create_task(copy.close())
            with _no_descriptors_left():
                await asyncio.wait([closing], timeout=0.5)
            async with asyncio.timeout(30):
                await closing
            seen = await session.run(f"import os; print(x, os.path.exists('/proc/{pid}'))")
            assert seen.stdout == "1 False\n", seen

    asyncio.run(scene())


def test_a_branch_without_a_descriptor_leaves_no_jail(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever of the descriptors that a branch duplicates is missing."""
    real, left = os.dup, 0

    def dup(descriptor: int) -> int:
        nonlocal left
        left -= 1
        if left == -1:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return real(descriptor)

    async def scene() -> None:
        nonlocal left
        async with belljar.AsyncSandbox(settings=_without_ready_guests(settings)) as box:
            for until_it_fails in range(20):
                async with box.session() as session:
                    assert (await session.run("x = 1")).ok
                    left = until_it_fails
                    with monkeypatch.context() as patched:
                        patched.setattr(os, "dup", dup)
                        (done,) = await asyncio.gather(session.branch(), return_exceptions=True)
                    assert isinstance(done, (list, Overloaded)), done
                    for copy in done if isinstance(done, list) else ():
                        await copy.close()
                async with asyncio.timeout(20):
                    while box.facts()["sandbox"]["jails"]:  # the jail of a session is destroyed with its last branch
                        await asyncio.sleep(0.01)
                if isinstance(done, list):
                    break
            assert 5 <= until_it_fails < 19

    asyncio.run(scene())


@pytest.mark.parametrize("spare", [0, 2, 4])
def test_a_standby_process_without_descriptors_leaks_none(settings: Settings, spare: int) -> None:
    async def scene() -> None:
        async with local_pool.opened(settings) as (_, pool):
            guest = await pool.guests.lease("bare", settings.default_limits)
            standby = Standby(argv=("true",), path="/bin/true", env=(), limits=settings.default_limits)
            try:
                before = len(os.listdir("/proc/self/fd"))
                with _no_descriptors_left(spare):
                    if spare < 4:
                        with pytest.raises(OSError, match="Too many open files") as caught:
                            Waiting(pool, guest, standby)
                    else:
                        Waiting(pool, guest, standby).close()
                assert len(os.listdir("/proc/self/fd")) == before
                assert spare == 4 or caught.tb  # the traceback keeps what it had made alive
            finally:
                pool.guests.release(guest)

    asyncio.run(scene())


async def _run_all(box: belljar.AsyncSandbox) -> list[belljar.Outcome | BaseException]:
    programs = (box.run("import time; time.sleep(0.2); print(1)") for _ in range(AT_ONCE))
    return await asyncio.gather(*programs, return_exceptions=True)


@contextlib.contextmanager
def _no_descriptors_left(spare: int = 0) -> Iterator[None]:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    hoard: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 64, limit[1]))
    try:
        with contextlib.suppress(OSError):
            while True:
                hoard.append(os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC))
        for _ in range(spare):
            os.close(hoard.pop())
        yield
    finally:
        for each in hoard:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
