"""The host touches a program's files with the program's rights, and only below the program's own directories."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from belljar.backends.local.run import artifacts
from belljar.jail import file_access, live_files, syscalls, workdir

OWNER = 1_999_999_999  # an unused uid
OTHER = OWNER - 1


@pytest.fixture
def work() -> Iterator[int]:
    """The descriptor of a directory like a program's, with a file of the program and one of root."""
    with tempfile.TemporaryDirectory() as path:
        os.chmod(path, 0o1777)
        for name, uid, mode in (("own", OWNER, 0o600), ("root's", 0, 0o600), ("group's", 0, 0o640)):
            made = Path(path, name)
            made.write_text(name)
            os.chown(made, uid, uid)
            made.chmod(mode)
        descriptor = os.open(path, os.O_PATH | os.O_DIRECTORY)
        yield descriptor
        os.close(descriptor)


@contextlib.contextmanager
def mounted(options: str, *names: str) -> Iterator[Path]:
    """Mount a tmpfs for each name, in a directory that is removed at the end."""
    with tempfile.TemporaryDirectory() as path, contextlib.ExitStack() as undone:
        for name in names:
            Path(path, name).mkdir()
            subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", f"{path}/{name}"], check=True)
            undone.callback(subprocess.run, ["umount", f"{path}/{name}"], check=True)
        yield Path(path)


def rights() -> tuple[object, ...]:
    """Return the ids of this thread."""
    status = Path("/proc/thread-self/status").read_text().splitlines()
    return tuple(line for line in status if line.startswith(("Uid", "Gid", "Groups", "CapEff")))


def test_a_thread_has_the_programs_rights_and_then_its_own_again(work: int) -> None:
    before = rights()
    with pytest.raises(ZeroDivisionError), file_access.acting_as(OWNER):
        assert not syscalls.effective_capabilities() & syscalls.CAPABILITIES_OVER_FILES
        assert os.getgroups() == []
        assert live_files.read(work, "own", 100) == b"own"
        _ = 1 // 0
    assert rights() == before


def test_no_other_thread_changes() -> None:
    before, seen, acting, looked = rights()[1:], [], threading.Event(), threading.Event()

    def act() -> None:
        with file_access.acting_as(OWNER):
            acting.set()
            assert looked.wait(30)

    thread = threading.Thread(target=act)
    thread.start()
    assert acting.wait(30)
    seen.append(rights()[1:])
    looked.set()
    thread.join()
    assert seen == [before]


def test_groups_of_the_server_open_nothing(work: int) -> None:
    before = os.getgroups()
    os.setgroups([0, 4])
    try:
        with file_access.acting_as(OWNER), pytest.raises(live_files.NotThere):
            live_files.read(work, "group's", 100)
        assert os.getgroups() == [0, 4]
    finally:
        os.setgroups(before)


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(
            "held = syscalls.permitted_capabilities(); syscalls.set_capabilities(held & ~(1 << 7), 0)", id="uid"
        ),
        pytest.param(
            "held = syscalls.permitted_capabilities(); syscalls.set_capabilities(held & ~(1 << 6), 0)", id="gid"
        ),
        pytest.param("syscalls.prctl(28, 1 << 2)  # capabilities stay when a uid changes", id="secure_bits"),
    ],
)
def test_a_thread_that_cannot_take_on_the_programs_rights_does_nothing(spoil: str) -> None:
    code = f"""
from belljar.jail import file_access, syscalls
{spoil}
try:
    with file_access.acting_as({OWNER}):
        print("did it")
except OSError as error:
    print("refused:", error.strerror)
print(file_access._current("setfsuid"), file_access._current("setfsgid"))
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.startswith("refused: "), ended
    assert ended.stdout.endswith("\n0 0\n")


@pytest.mark.parametrize("name", ["root's", "group's"])
def test_the_host_does_not_touch_what_the_program_may_not(work: int, name: str) -> None:
    async def attempt() -> None:
        with pytest.raises(live_files.NotThere):
            await artifacts.on_thread(work, OWNER, live_files.read, name, 100)
        with pytest.raises(live_files.NotThere):
            await artifacts.on_thread(work, OWNER, live_files.delete, name)
        with pytest.raises((live_files.NotThere, live_files.NoRoom)):
            await artifacts.on_thread(work, OWNER, live_files.write, name, (b"other",))
        found = await artifacts.on_thread(work, OWNER, workdir.collect, lambda _: True, 100, 100)
        assert found == [("own", b"own")]
        assert await artifacts.on_thread(work, OTHER, workdir.collect, lambda _: True, 100, 100) == []

    asyncio.run(attempt())
    assert live_files.read(work, name, 100) == name.encode()
    assert not [entry for entry in live_files.entries(work) if entry.path.startswith(".belljar")]


def test_a_directory_mounted_for_programs_is_accepted() -> None:
    with mounted("mode=1777", "a", "b") as path:
        descriptors = [os.open(path / name, os.O_PATH) for name in ("a", "b")]
        try:
            file_access.check_writable_dirs(descriptors, 0)
            with pytest.raises(file_access.NotOurs):
                file_access.check_writable_dirs([descriptors[0]] * 2, 0)
            with pytest.raises(file_access.NotOurs):
                file_access.check_writable_dirs(descriptors, OWNER)
        finally:
            for each in descriptors:
                os.close(each)


@pytest.mark.parametrize("place", ["a/below", "a/file", "b", "/usr", "/proc/self", "/", "/dev/null"])
def test_any_other_directory_is_refused(place: str) -> None:
    with mounted("mode=1777", "a") as path, mounted("mode=0755", "b") as other:
        (path / "a/below").mkdir()
        (path / "a/below").chmod(0o1777)
        (path / "a/file").touch()
        descriptor = os.open(other / place if place == "b" else path / place, os.O_PATH)
        try:
            with pytest.raises(file_access.NotOurs):
                file_access.check_writable_dirs([descriptor], 0)
        finally:
            os.close(descriptor)
