"""The walls as seen from the host: uids and namespaces of guests, what ends with what, and unprivileged servers.

`tests/escape/` tests the walls from inside.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import os
import secrets
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import belljar
from belljar.contract.errors import InvalidSettings, WallMissing
from belljar.contract.execution import Output
from belljar.settings import Settings

if TYPE_CHECKING:
    from tests.conftest import Host, PlainBox, PlainUser, Process

SLEEPERS = """
import os, subprocess, sys, time
marker = sys.argv[1]
for _ in range(2):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execv(sys.executable, ["python", "-c", "import time; time.sleep(1000)", marker])
        os._exit(0)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)", marker])
print("planted", flush=True)
os.execv(sys.executable, ["python", "-c", "import time; time.sleep(1000)", marker])
"""


@contextlib.contextmanager
def planted(box: belljar.Sandbox, host: Host) -> Iterator[list[Process]]:
    """Run a program with a child and two daemons; yield the four processes as the host sees them."""
    marker = f"marker-{secrets.token_hex(8)}"
    with contextlib.closing(box.stream(SLEEPERS, args=[marker])) as events:
        assert any(isinstance(event, Output) and "planted" in event.text for event in events)
        host.wait_until(lambda: len(marked(host, marker)) == 4, "four processes with the marker")
        yield marked(host, marker)
    assert marked(host, marker) == []


def marked(host: Host, marker: str) -> list[Process]:
    """Return the processes with the marker as their last argument, except the server that started them."""
    return [each for each in host.processes() if each.command.endswith(marker) and "belljar" not in each.command]


# ---- uids and namespaces of guests


def test_guests_have_unused_uids_on_the_host(box: belljar.Sandbox, host: Host, settings: Settings) -> None:
    with planted(box, host) as guests:
        uids = {process.uid for process in guests}
        assert len(uids) == 1
        assert uids.pop() > settings.jail.uid_base  # neither root's, nor this process's, nor the zygote's
        for process in guests:
            status = Path(f"/proc/{process.pid}/status").read_text()
            ids = [line.split()[1:] for line in status.splitlines() if line.startswith(("Uid:", "Gid:"))]
            assert {each for line in ids for each in line} == {str(process.uid)}


def test_concurrent_runs_have_different_uids(box: belljar.Sandbox, host: Host) -> None:
    with planted(box, host) as first, planted(box, host) as second:
        assert {process.uid for process in first}.isdisjoint(process.uid for process in second)


NAMESPACES = ("user", "pid", "mnt", "net", "ipc", "uts", "cgroup")


def test_guests_share_no_namespace_with_the_host(box: belljar.Sandbox, host: Host) -> None:
    with planted(box, host) as guests:
        for process in guests:
            for kind in NAMESPACES:
                theirs, ours = (os.readlink(f"/proc/{pid}/ns/{kind}") for pid in (process.pid, os.getpid()))
                assert theirs != ours, kind


def test_concurrent_runs_share_only_namespaces_without_state(box: belljar.Sandbox, host: Host) -> None:
    with planted(box, host) as first, planted(box, host) as second:
        for kind in ("pid", "mnt", "net", "ipc"):
            a, b = (os.readlink(f"/proc/{guests[0].pid}/ns/{kind}") for guests in (first, second))
            assert a != b, kind


def test_no_process_of_a_pool_runs_as_root(box: belljar.Sandbox, host: Host) -> None:
    """The warden, its zygotes and the jail_inits have capabilities in a user namespace at most, never on the host."""
    with planted(box, host):
        # Only children of a keeper: servers, container engines and tool servers of other tests are not in a jail.
        keepers = [each for each in descendants(host, os.getpid()) if "belljar.inside.warden.warden" in each.command]
        ours = [*keepers, *(each for keeper in keepers for each in descendants(host, keeper.pid))]
        assert len(ours) > 4
        assert [process for process in ours if process.uid in (0, os.getuid())] == []


def test_every_process_of_a_guest_is_behind_the_filter(box: belljar.Sandbox, host: Host) -> None:
    with planted(box, host) as guests:
        for process in guests:
            status = Path(f"/proc/{process.pid}/status").read_text()
            facts = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
            assert (facts["NoNewPrivs"], facts["Seccomp"]) == ("1", "2")
            assert {int(facts[f"Cap{each}"], 16) for each in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {0}


def test_a_jail_init_has_no_rights_either(box: belljar.Sandbox, host: Host) -> None:
    with planted(box, host):
        jail_inits = [process for process in host.guest_processes() if process.command.endswith("sleep infinity")]
        assert jail_inits
        for process in jail_inits:
            status = Path(f"/proc/{process.pid}/status").read_text()
            facts = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
            assert (facts["NoNewPrivs"], facts["Seccomp"]) == ("1", "2")
            assert {int(facts[f"Cap{each}"], 16) for each in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {0}
            assert not (Path(f"/proc/{process.pid}/environ").read_bytes())


def test_guests_see_nothing_of_the_hosts_mounts(box: belljar.Sandbox, host: Host) -> None:
    with planted(box, host) as guests:
        lines = Path(f"/proc/{guests[0].pid}/mountinfo").read_text().splitlines()
    for line in lines:
        fields = line.split()
        place, options, kind = fields[4], fields[5].split(","), fields[fields.index("-") + 1]
        writable = place in ("/work", "/tmp", "/dev/shm")
        assert "nosuid" in options, line
        is_covered = kind == "proc" and "subset=pid" not in line  # the pool's, below the jail's own
        if not is_covered and not writable:
            assert "ro" in options, line
        if kind not in ("devtmpfs",) and place != "/dev" and not place.startswith("/dev/"):
            assert "nodev" in options, line


def descendants(host: Host, pid: int) -> Iterator[Process]:
    processes = list(host.processes())
    pending = [pid]
    while pending:
        parent = pending.pop()
        for process in processes:
            if process.parent == parent:
                pending.append(process.pid)
                yield process


HOARD_WATCHERS = """
import ctypes, time
libc = ctypes.CDLL(None)
while libc.inotify_init() >= 0:
    pass
print("planted", flush=True)
time.sleep(1000)
"""


def test_guests_cannot_use_up_limited_resources_of_the_host(box: belljar.Sandbox) -> None:
    """The kernel also counts some resources for the creator of the user namespace, which must not be root."""
    with contextlib.closing(box.stream(HOARD_WATCHERS)) as events:
        assert any(isinstance(event, Output) and "planted" in event.text for event in events)
        neighbour = box.run("import ctypes; print(ctypes.CDLL(None).inotify_init() >= 0)")
        assert neighbour.stdout == "True\n"
        ours = ctypes.CDLL(None).inotify_init()
        assert ours >= 0
        os.close(ours)


# ---- what ends with what


def test_closing_a_stream_ends_every_descendant_before_it_returns(box: belljar.Sandbox, host: Host) -> None:
    with planted(box, host) as guests:
        pids = [process.pid for process in guests]
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []


@pytest.mark.parametrize(
    "limits", [{"wall_seconds": 0.5}, {"cpu_seconds": 0.3, "wall_seconds": 20}], ids=["wall", "cpu"]
)
def test_a_limit_ends_every_descendant_before_the_answer(
    box: belljar.Sandbox, host: Host, limits: dict[str, float]
) -> None:
    marker = f"marker-{secrets.token_hex(8)}"
    code = f"""
        import os, sys
        for _ in range(5):
            if os.fork() == 0:
                os.setsid()
                os.execv(sys.executable, ["python", "-c", "while True: pass", {marker!r}])
        while True: pass
    """
    outcome = box.run(textwrap.dedent(code), limits=limits)
    assert outcome.status == "timed_out"
    assert marked(host, marker) == []


SERVER = """
import dataclasses, sys, threading
from pathlib import Path
import belljar
from belljar.settings import load
settings = load(environ={environ!r})
box = belljar.Sandbox(settings=settings).open()
with box:
    if sys.argv[1] == "sleep":
        for event in box.stream({code!r}, args=[sys.argv[2]]):
            if getattr(event, "text", "").startswith("planted"):
                print("running", flush=True)
                threading.Event().wait()
    print(box.run("print('hello')").stdout, end="", flush=True)
"""


class Server:
    """A process with a sandbox of its own, to be killed."""

    def __init__(self, settings: Settings, sources: Path, directory: Path) -> None:
        self.settings = dataclasses.replace(
            settings,
            runtime_dir=directory / "run",
            jail=dataclasses.replace(
                settings.jail, cgroup_parent=f"{settings.jail.cgroup_parent}-{secrets.token_hex(4)}"
            ),
        )
        environ = {
            "BELLJAR_STATE_DIR": str(settings.state_dir),
            "BELLJAR_RUNTIME_DIR": str(self.settings.runtime_dir),
            "BELLJAR_JAIL_UID_BASE": str(settings.jail.uid_base),
            "BELLJAR_JAIL_CGROUP_PARENT": self.settings.jail.cgroup_parent,
        }
        self._code = SERVER.format(environ=environ, code=SLEEPERS)
        self._sources = sources

    @contextlib.contextmanager
    def start(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """Start the server; it ends with the block at the latest."""
        with subprocess.Popen(
            [sys.executable, "-c", self._code, *arguments],
            stdout=subprocess.PIPE,
            text=True,
            env={"PYTHONPATH": str(self._sources), "PATH": os.environ["PATH"]},
        ) as process:
            try:
                yield process
            finally:
                process.kill()


@pytest.fixture
def server(settings: Settings, sources: Path, tmp_path: Path) -> Server:
    return Server(settings, sources, tmp_path)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV], ids=["SIGKILL", "SIGTERM", "SIGSEGV"])
def test_nothing_outlives_a_killed_server_and_the_next_one_cleans_up(
    server: Server, host: Host, how: signal.Signals
) -> None:
    theirs = type(host)(server.settings)
    marker = f"marker-{secrets.token_hex(8)}"
    with server.start("sleep", marker) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "running\n"
        host.wait_until(lambda: len(marked(host, marker)) == 4, "four processes with the marker")
        processes = [each.pid for each in descendants(host, process.pid)]
        assert len(processes) > 6  # the keeper, the warden, its zygote, jail_inits, guests
        assert theirs.cgroup_directories()
        process.send_signal(how)
        process.wait(30)
    host.wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in processes), "all descendants gone")
    assert marked(host, marker) == []
    left = {path for path in theirs.cgroup_directories() if "instance" in path}
    with server.start("hello") as process:
        assert process.communicate(timeout=60)[0] == "hello\n"
    assert left.isdisjoint(theirs.cgroup_directories())
    assert not [path for path in theirs.cgroup_directories() if "instance" in path]


# ---- walls that are missing


def test_opting_out_of_an_unknown_wall_is_refused(settings: Settings) -> None:
    with pytest.raises(InvalidSettings, match="seccomp"):
        belljar.Sandbox(settings=settings, without_walls=["seccomp"])


def test_a_plain_user_learns_which_walls_are_missing_and_what_to_do(plain_user: PlainUser) -> None:
    with plain_user.open(without_walls="") as refused:
        assert (refused.greeting["opened"], refused.greeting["code"]) == (False, WallMissing.code)
        message = refused.greeting["message"]
    for expected in ("wall 'uid'", "wall 'cgroup'", "run as root", "--without-wall uid", "--without-wall cgroup"):
        assert expected in message
    assert "landlock" not in message


@pytest.mark.parametrize("given_up", ["uid", "cgroup"])
def test_opting_out_of_one_wall_keeps_the_others(plain_user: PlainUser, given_up: str) -> None:
    with plain_user.open(without_walls=given_up) as refused:
        assert not refused.greeting["opened"]
        assert f"wall '{given_up}'" not in refused.greeting["message"]


# ---- guests of a plain user, where limits are per process and thus weaker than as root


def test_a_plain_users_guests_have_their_uid_and_no_capabilities(
    plain_box: PlainBox, plain_user: PlainUser, host: Host
) -> None:
    marker = f"marker-{secrets.token_hex(8)}"
    with plain_box.hold(SLEEPERS, "planted", args=[marker]):
        host.wait_until(lambda: len(marked(host, marker)) == 4, "four processes with the marker")
        for process in marked(host, marker):
            assert process.uid == plain_user.uid
            facts = Path(f"/proc/{process.pid}/status").read_text()
            assert "NoNewPrivs:\t1" in facts
            assert "Seccomp:\t2" in facts
            for kind in NAMESPACES:
                guest, server = (os.readlink(f"/proc/{pid}/ns/{kind}") for pid in (process.pid, plain_box.pid))
                assert guest != server, kind
    host.wait_until(lambda: not marked(host, marker), "all of them gone")


TAKE_OVER_INIT = """
import os
try:
    os.open("/proc/1/mem", os.O_RDWR)
except OSError:
    print("held")
else:
    print("held" if "Seccomp:\\t2" in open("/proc/1/status").read() else "init can be made to call anything")
"""


def test_without_landlock_init_of_a_jail_is_still_behind_the_filter(plain_user: PlainUser) -> None:
    """It then has the guest's own uid, so a program can write to its memory."""
    with plain_user.open(without_walls="uid,cgroup,landlock") as box:
        assert box.run(TAKE_OVER_INIT).stdout == "held\n"


@pytest.mark.parametrize(
    ("code", "limits", "expected"),
    [
        pytest.param("x = bytearray(200 << 20)", {"memory_mb": 64}, "failed", id="memory_of_one_process"),
        pytest.param("print('x' * 20)\nx = bytearray(40 << 20)", {"memory_mb": 64}, "ok", id="memory_that_fits"),
        pytest.param("while True: pass", {"cpu_seconds": 1, "wall_seconds": 20}, "timed_out", id="cpu_of_one_process"),
        pytest.param("import time; time.sleep(99)", {"wall_seconds": 0.5}, "timed_out", id="wall"),
        pytest.param(
            "import os\nwhile True:\n try: os.fork()\n except OSError: pass",
            {"wall_seconds": 1},
            "timed_out",
            id="forks",
        ),
        pytest.param("open('f','wb').write(bytes(99 << 20))", {"disk_mb": 16, "memory_mb": 512}, "failed", id="disk"),
    ],
)
def test_limits_without_a_cgroup(plain_box: PlainBox, code: str, limits: dict[str, float], expected: str) -> None:
    assert plain_box.run(code, limits=limits).status == expected
    assert plain_box.run("print('hello')").stdout == "hello\n"


def test_a_plain_users_program_that_forks_all_it_can_leaves_room_for_other_programs(plain_box: PlainBox) -> None:
    """The kernel counts processes per uid, which guests share here: other programs still run, but may fail to fork."""
    forks = """
        import os, signal
        try:
            while os.fork():
                pass
            signal.pause()
        except OSError:
            print("planted", flush=True)
            signal.pause()
    """
    with plain_box.hold(textwrap.dedent(forks), "planted", limits={"wall_seconds": 30}):
        for _ in range(5):
            assert plain_box.run("print('hello')").stdout == "hello\n"
