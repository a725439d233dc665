"""Fixtures for every test: real settings, an open sandbox behind all walls, and the view from outside."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import local_pool
import pytest

import belljar
from belljar.jail import policy
from belljar.jail.cgroups import find_hierarchies
from belljar.settings import Settings, load

pytest_plugins = ["container_engines", "server_process", "side_by_side"]

# A shell that starts pytest in the background disables Ctrl-C, also for its child processes.
signal.signal(signal.SIGINT, signal.default_int_handler)

_UID_RANGES = 64  # one for each sandbox that a test session may have open
_DEADLINE_SECONDS = 30.0
_SETTLE_SECONDS = 20.0
_PLAIN_UID = 12345  # an unused uid: it has no entry in /etc/passwd


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the working tree."""
    return Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def sources(repository: Path) -> Path:
    """The directory that holds the package, for a module search path."""
    return repository / "src"


@pytest.fixture(scope="session")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """Every wall, the environment in BELLJAR_STATE_DIR, and names that no other test session uses."""
    given = load()
    uid_base = 2_000_000_000 + _session_number() % 256 * _UID_RANGES * policy.UIDS_PER_INSTANCE
    jail = dataclasses.replace(given.jail, uid_base=uid_base, cgroup_parent=f"belljar-test-{os.getpid()}")
    return dataclasses.replace(given, jail=jail, runtime_dir=tmp_path_factory.mktemp("run"))


def _session_number() -> int:
    """One that no worker beside us has, also when it is divided."""
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    return os.getpid() if worker is None else os.getppid() + int(worker.removeprefix("gw"))


@pytest.fixture(scope="session")
def box(settings: Settings) -> Iterator[belljar.Sandbox]:
    """An open sandbox, as root with all walls."""
    with belljar.Sandbox(settings=settings) as opened:
        yield opened


@pytest.fixture(scope="session")
def narrow_box(settings: Settings) -> Iterator[belljar.Sandbox]:
    """One program at a time and none forked ahead: each run reuses the jail of the previous one if it is clean."""
    pool = dataclasses.replace(settings.pool, max_running=1, ready_guests=0)
    with belljar.Sandbox(settings=dataclasses.replace(settings, pool=pool)) as opened:
        yield opened


@pytest.fixture(scope="session")
def plain_user(sources: Path, repository: Path) -> Iterator[PlainUser]:
    """An unprivileged user with a readable copy of the sources and its own home directory."""
    home = Path(tempfile.mkdtemp(prefix="belljar-plain-"))
    try:
        home.chmod(0o755)
        shutil.copytree(sources / "belljar", home / "src" / "belljar", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(repository / "tests" / "escape" / "plain_user_server.py", home)
        (home / "own").mkdir()
        os.chown(home / "own", _PLAIN_UID, _PLAIN_UID)
        yield PlainUser(home)
    finally:
        shutil.rmtree(home)


@pytest.fixture(scope="session")
def plain_box(plain_user: PlainUser) -> Iterator[PlainBox]:
    """The sandbox of a plain user, who opted out of the two walls that need root."""
    with plain_user.open(without_walls="uid,cgroup") as box:
        assert box.greeting == {"opened": True}, box.greeting
        yield box


@pytest.fixture(scope="session")
def host(settings: Settings) -> Host:
    """This machine as seen from outside the jail."""
    return Host(settings)


class Leftovers(NamedTuple):
    """Everything that a sandbox could leave behind, each thing by what distinguishes it from all others."""

    processes: frozenset[tuple[int, int]]  # pid and start time of each of `Host.own_processes`
    mounts: frozenset[str]  # in this mount namespace, apart from those of the tests' container engines
    cgroups: frozenset[str]  # directories below our own
    descriptors: frozenset[tuple[str, str]]  # open in this process: number, and what it refers to
    files: frozenset[str]  # below the directories that Belljar writes to

    def counts(self) -> Counts:
        """For a sandbox that stays open: it replaces ready guests and jails, but must not have more and more."""
        return Counts(*map(len, self))


class Counts(NamedTuple):
    """How many there are of each kind of `Leftovers`."""

    processes: int
    mounts: int
    cgroups: int
    descriptors: int
    files: int


class Host:
    """Observes this machine from outside the jail, where no program can forge what is seen."""

    def __init__(self, settings: Settings) -> None:
        first = settings.jail.uid_base
        self._uids = range(first, first + _UID_RANGES * policy.UIDS_PER_INSTANCE)
        self._settings = settings

    def leftovers(self) -> Leftovers:
        """List everything that could be left behind, as it is now."""
        return Leftovers(
            processes=frozenset((each.pid, each.started_at) for each in self.own_processes()),
            mounts=frozenset(_mounts()),
            cgroups=frozenset(self.cgroup_directories()),
            descriptors=frozenset(local_pool.descriptors()),
            files=frozenset(
                str(path) for path in (*self._settings.runtime_dir.rglob("*"), *self._settings.state_dir.iterdir())
            ),
        )

    def settled_leftovers(self) -> Leftovers:
        """As `leftovers`, once they no longer change: an open sandbox forks guests ahead after its last response."""
        deadline, last = time.monotonic() + _SETTLE_SECONDS, self.leftovers()
        while time.monotonic() < deadline:
            time.sleep(0.3)
            now = self.leftovers()
            if now == last:
                break
            last = now
        return last

    def new_since(self, before: Leftovers) -> Leftovers:
        """What was not there before. Whatever has gone since makes no difference.

        Other sandboxes and servers may be open, and go on working: what descends from a process that was there before,
        or lies in the cgroup of an instance that was there before, is theirs.
        """
        now = self.leftovers()
        known = {each.pid: each for each in self.processes()}

        def is_theirs(pid: int) -> bool:
            while (process := known.get(pid)) is not None:
                if (process.pid, process.started_at) in before.processes:
                    return True
                pid = process.parent
            return False

        return Leftovers(
            processes=frozenset(each for each in now.processes - before.processes if not is_theirs(each[0])),
            mounts=now.mounts - before.mounts,
            cgroups=frozenset(each for each in now.cgroups - before.cgroups if _instance(each) not in before.cgroups),
            descriptors=now.descriptors - before.descriptors,
            files=now.files - before.files,
        )

    def assert_nothing_new(self, before: Leftovers, *kinds: str, seconds: float = _DEADLINE_SECONDS) -> None:
        """Fail if anything of these kinds (default: all) is new, and still there after `seconds`."""
        deadline = time.monotonic() + seconds
        while True:
            found = self.new_since(before)._asdict()
            left = {kind: found[kind] for kind in kinds or found if found[kind]}
            if not left:
                return
            if time.monotonic() > deadline:
                commands = [
                    each.command for each in self.processes() if (each.pid, each.started_at) in found["processes"]
                ]
                pytest.fail(f"left behind: {left} {commands or ''}")
            time.sleep(0.01)

    def own_processes(self) -> list[Process]:
        """The children of this process, and every process with a uid of this test session; zombies included."""
        return [each for each in self.processes() if each.parent == os.getpid() or each.uid in self._uids]

    def guest_processes(self) -> list[Process]:
        """Wardens, zygotes, jail_inits and guests of this test session: every process with one of its uids."""
        return [process for process in self.processes() if process.uid in self._uids]

    def cgroup_directories(self) -> list[str]:
        """Every cgroup of this test session, in every hierarchy."""
        roots = [f"{each.path}/{self._settings.jail.cgroup_parent}" for each in find_hierarchies()]
        return [path for root in roots for path, _, _ in os.walk(root)]

    @staticmethod
    def processes() -> Iterator[Process]:
        """Every process of this machine."""
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    lines = (entry / "status").read_text().splitlines()
                    stat = (entry / "stat").read_text()
                    command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                except OSError:
                    continue  # gone meanwhile
                facts = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
                yield Process(
                    pid=int(entry.name),
                    parent=int(facts["PPid"][0]),
                    uid=int(facts["Uid"][0]),
                    command=command,
                    started_at=int(stat.rpartition(")")[2].split()[19]),
                )

    @staticmethod
    def wait_until(condition: Callable[[], object], what: str, seconds: float = _DEADLINE_SECONDS) -> None:
        """Return once `condition` holds; fail if it does not in time."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"not within {seconds} seconds: {what}"
            time.sleep(0.01)


def _mounts() -> Iterator[str]:
    from container_engines import ENGINE_MOUNT

    lines = [line.split(" ") for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    engines = tuple(words[4] for words in lines if ENGINE_MOUNT in words)  # of this and of other workers
    for words in lines:
        if not any(words[4] == each or words[4].startswith(f"{each}/") for each in engines):
            yield " ".join((words[0], words[4], *words[words.index("-") + 1 :]))


def _instance(cgroup: str) -> str:
    """The directory of the instance that a cgroup belongs to; empty if it belongs to none."""
    found = re.match(r".*/instance-[^/]+", cgroup)
    return found[0] if found else ""


class Process(NamedTuple):
    """A process as the host sees it."""

    pid: int
    parent: int
    uid: int
    command: str
    started_at: int  # in clock ticks since the machine booted


class PlainUser:
    """Opens sandboxes as an unprivileged user."""

    uid = _PLAIN_UID

    def __init__(self, home: Path) -> None:
        self._home = home

    @contextlib.contextmanager
    def open(self, without_walls: str) -> Iterator[PlainBox]:
        """A sandbox in a process of this user; its first line says whether it opened."""
        process = subprocess.Popen(
            [self._python(), str(self._home / "plain_user_server.py"), str(self._home / "own"), without_walls],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            user=self.uid,
            group=self.uid,
            extra_groups=[],
            cwd="/",
            env={"PATH": "/usr/bin:/bin", "HOME": str(self._home / "own"), "PYTHONPATH": str(self._home / "src")},
        )
        with process:
            yield PlainBox(process)
            assert process.stdin is not None
            process.stdin.close()
            assert process.wait(_DEADLINE_SECONDS) == 0

    def _python(self) -> str:
        """Find a recent interpreter that this user can run; one in another user's home directory is not readable."""
        for python in (sys.executable, "/usr/local/bin/python3", "/usr/bin/python3"):
            command = [python, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]
            try:
                asked = subprocess.run(command, user=self.uid, group=self.uid, extra_groups=[], cwd="/", check=False)
            except (FileNotFoundError, PermissionError):
                continue
            if asked.returncode == 0:
                return python
        pytest.fail("no Python 3.11 that every user can run; install one in /usr/bin")


class PlainBox:
    """A sandbox of a plain user, with the interface of a `Sandbox`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.pid = process.pid
        self.greeting = self._receive()

    def run(self, code: str, **asked: Any) -> SimpleNamespace:
        """Run one program to its end."""
        answer = self._ask({"do": "run", "code": code, "asked": asked})
        assert "outcome" in answer, answer
        return SimpleNamespace(**answer["outcome"])

    @contextlib.contextmanager
    def hold(self, code: str, text: str, **asked: Any) -> Iterator[None]:
        """A program that has written `text` and is still running."""
        answer = self._ask({"do": "hold", "code": code, "asked": asked, "text": text})
        assert not answer, answer
        try:
            yield
        finally:
            self._ask({"do": "release"})

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._receive()

    def _receive(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the plain user's process has ended"
        answer: dict[str, Any] = json.loads(line)
        return answer
