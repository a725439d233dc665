"""The tests' own view of what is left behind: it sees everything that is new, and nothing else."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from belljar.jail.cgroups import find_hierarchies
from belljar.settings import Settings

if TYPE_CHECKING:
    from tests.conftest import Host, Leftovers

#: Starts a grandchild with a guest's uid, whose parent has ended, and prints its pid.
ORPHAN = """
import os, sys, time
if not (child := os.fork()):
    if not os.fork():
        os.setresuid(*[int(sys.argv[1])] * 3)
        print(os.getpid(), flush=True)
        os.close(1)
        time.sleep(99)
    os._exit(0)
os.waitpid(child, 0)
"""
#: Starts another process with a guest's uid whenever it reads a line, and prints its pid.
PARENT = """
import subprocess, sys
print("ready", flush=True)
for _ in sys.stdin:
    print(subprocess.Popen(["sleep", "99"], user=int(sys.argv[1])).pid, flush=True)
"""
SOON = 0.2  # how long to wait for a leak that stays


class Leak(NamedTuple):
    """What is leaked: its kind in `Leftovers`, and a context that leaks one."""

    kind: str
    one: Callable[[], contextlib.AbstractContextManager[object]]


@contextlib.contextmanager
def child() -> Iterator[None]:
    with subprocess.Popen(["sleep", "99"]) as process:
        yield
        process.kill()


@contextlib.contextmanager
def orphan(settings: Settings) -> Iterator[None]:
    command = [sys.executable, "-c", ORPHAN, str(settings.jail.uid_base + 1)]
    pid = int(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    yield
    os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def descriptors() -> Iterator[None]:
    opened = os.pipe()
    yield
    for each in opened:
        os.close(each)


@contextlib.contextmanager
def file(settings: Settings) -> Iterator[None]:
    path = settings.runtime_dir / "leaked" / secrets.token_hex(4)
    path.parent.mkdir(exist_ok=True)
    path.touch()
    yield
    path.unlink()
    path.parent.rmdir()


@contextlib.contextmanager
def mount(tmp_path: Path) -> Iterator[None]:
    path = tmp_path / secrets.token_hex(4)
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "leaked", str(path)], check=True)
    yield
    subprocess.run(["umount", str(path)], check=True)


@contextlib.contextmanager
def cgroup(settings: Settings) -> Iterator[None]:
    parent = Path(find_hierarchies()[0].path, settings.jail.cgroup_parent)
    path = parent / f"instance-{secrets.token_hex(4)}" / "jail-1"
    path.mkdir(parents=True)
    yield
    path.rmdir()
    path.parent.rmdir()
    with contextlib.suppress(OSError):  # other instances of this test session are in it
        parent.rmdir()


@pytest.fixture(params=["child", "orphan", "descriptors", "file", "mount", "cgroup"])
def leak(request: pytest.FixtureRequest, settings: Settings, tmp_path: Path) -> Leak:
    return {
        "child": Leak("processes", child),
        "orphan": Leak("processes", lambda: orphan(settings)),
        "descriptors": Leak("descriptors", descriptors),
        "file": Leak("files", lambda: file(settings)),
        "mount": Leak("mounts", lambda: mount(tmp_path)),
        "cgroup": Leak("cgroups", lambda: cgroup(settings)),
    }[request.param]


def sees(host: Host, before: Leftovers, kind: str, *kinds: str) -> bool:
    with pytest.raises(pytest.fail.Exception) as failure:
        host.assert_nothing_new(before, *kinds, seconds=SOON)
    return f"'{kind}': frozenset(" in str(failure.value)


def test_a_leak_is_seen(host: Host, leak: Leak) -> None:
    before = host.settled_leftovers()
    with leak.one():
        assert sees(host, before, leak.kind)
        assert sees(host, before, leak.kind, leak.kind)
    host.assert_nothing_new(before)


def test_a_leak_is_seen_though_something_older_has_gone(host: Host, leak: Leak) -> None:
    with leak.one():
        before = host.settled_leftovers()
    with leak.one():
        assert sees(host, before, leak.kind)


def test_something_older_that_has_gone_is_not_a_leak(host: Host, leak: Leak) -> None:
    with leak.one():
        before = host.settled_leftovers()
    host.assert_nothing_new(before)


def test_what_is_on_its_way_out_is_waited_for(host: Host) -> None:
    before = host.settled_leftovers()
    with subprocess.Popen(["sleep", "0.5"]) as process:
        threading.Thread(target=process.wait).start()  # else it stays as a zombie
        assert host.new_since(before).processes
        host.assert_nothing_new(before, "processes")


def test_an_older_process_may_start_others(host: Host, settings: Settings) -> None:
    """As servers of other tests do, and sandboxes that stay open."""
    command = [sys.executable, "-c", PARENT, str(settings.jail.uid_base + 1)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"ready\n"
        before = host.settled_leftovers()
        parent.stdin.write(b"\n")
        parent.stdin.flush()
        pid = int(parent.stdout.readline())
        assert pid in {each.pid for each in host.own_processes()}
        host.assert_nothing_new(before, seconds=SOON)
        os.kill(pid, signal.SIGKILL)
        parent.stdin.close()
