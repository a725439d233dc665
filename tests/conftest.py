"""What every test may ask for: real settings, an open sandbox behind all walls, and a count of what is left behind."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import belljar
from belljar.jail import policy
from belljar.jail.cgroups import CgroupsUnavailable, find_hierarchies
from belljar.settings import Settings, load

_INSTANCES = 64  # uid ranges that one test session may claim


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the working tree."""
    return Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def sources(repository: Path) -> Path:
    """The directory that holds the package, fit for a module search path."""
    return repository / "src"


@pytest.fixture(scope="session")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """Every wall, the environment that BELLJAR_STATE_DIR holds, and names that no other test session uses."""
    given = load()
    uid_base = 2_000_000_000 + os.getpid() % 256 * _INSTANCES * policy.UIDS_PER_INSTANCE
    jail = dataclasses.replace(given.jail, uid_base=uid_base, cgroup_parent=f"belljar-test-{os.getpid()}")
    return dataclasses.replace(given, jail=jail, runtime_dir=tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="session")
def box(settings: Settings) -> Iterator[belljar.Sandbox]:
    """An open sandbox, as root with all walls."""
    with belljar.Sandbox(settings=settings) as opened:
        yield opened


@pytest.fixture(scope="session")
def narrow_box(settings: Settings) -> Iterator[belljar.Sandbox]:
    """One program at a time and none forked ahead: each run takes over the cell of the one before, if it is clean."""
    pool = dataclasses.replace(settings.pool, max_running=1, ready_guests=0)
    with belljar.Sandbox(settings=dataclasses.replace(settings, pool=pool)) as opened:
        yield opened


@dataclasses.dataclass(frozen=True)
class Leftovers:
    """What running programs must not make more of. Numbers of this machine, taken from outside the jail."""

    processes: int  # of our guests' uids, zombies included
    zombies: int  # children of this process that nobody has waited for
    mounts: int  # in this mount namespace
    cgroups: int  # directories below our own
    descriptors: int  # open in this process
    files: int  # in the runtime and state directories

    @classmethod
    def count(cls, settings: Settings) -> Leftovers:
        """As things are now."""
        return cls(
            processes=len(guest_processes(settings)),
            zombies=sum(state == "Z" and parent == os.getpid() for _, parent, state in _processes()),
            mounts=len(Path("/proc/self/mountinfo").read_text().splitlines()),
            cgroups=len(cgroup_directories(settings)),
            descriptors=len(os.listdir("/proc/self/fd")),
            files=sum(len(files) for _, _, files in os.walk(settings.runtime_dir)) + len(os.listdir(settings.state_dir)),
        )


def guest_processes(settings: Settings) -> list[int]:
    """Every process whose host uid belongs to this test session: wardens, zygotes, sleepers, guests."""
    first = settings.jail.uid_base
    ours = range(first, first + _INSTANCES * policy.UIDS_PER_INSTANCE)
    found = []
    for pid, _, _ in _processes():
        try:
            if os.stat(f"/proc/{pid}").st_uid in ours or _real_uid(pid) in ours:
                found.append(pid)
        except OSError:
            continue  # gone meanwhile
    return found


def cgroup_directories(settings: Settings) -> list[str]:
    """Every cgroup of this test session, in every hierarchy."""
    try:
        roots = [f"{each.path}/{settings.jail.cgroup_parent}" for each in find_hierarchies()]
    except CgroupsUnavailable:
        return []
    return [path for root in roots for path, _, _ in os.walk(root)]


def wait_until(condition: Callable[[], bool], seconds: float = 20.0, what: str = "it") -> None:
    """Return once `condition` holds; fail when it does not within the deadline."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} never happened"
        time.sleep(0.01)


def _real_uid(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("Uid:"):
            return int(line.split()[1])
    return -1


def _processes() -> Iterator[tuple[int, int, str]]:
    """Every process of this machine: pid, parent, state letter."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                after = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            yield int(name), int(after[1]), after[0]
