"""A branch is an independent session that starts with its parent's state; neither can reach the other."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import belljar
from belljar.contract.errors import (
    CannotBranch,
    InvalidExecution,
    SandboxFault,
    SessionBusy,
    SessionEnded,
)
from belljar.contract.execution import Outcome, Output
from belljar.jail import policy
from belljar.settings import Settings

if TYPE_CHECKING:
    from tests.conftest import Host


@pytest.fixture(scope="module")
def roomy(settings: Settings) -> Iterator[belljar.Sandbox]:
    """Room for many sessions."""
    sessions = dataclasses.replace(settings.sessions, max_sessions=100)
    pool = dataclasses.replace(settings.pool, ready_guests=1)
    with belljar.Sandbox(settings=dataclasses.replace(settings, sessions=sessions, pool=pool)) as opened:
        yield opened


@pytest.fixture
def session(roomy: belljar.Sandbox) -> Iterator[Any]:
    with roomy.session() as opened:
        yield opened


@pytest.fixture
def branch() -> Iterator[Callable[..., Any]]:
    """Branch a session once; the branch is closed after the test."""
    with contextlib.ExitStack() as stack:

        def one(session: Any, **options: Any) -> Any:
            (copy,) = session.branch(**options)
            return stack.enter_context(contextlib.closing(copy))

        yield one


def output_of(outcome: Outcome) -> str:
    assert outcome.ok, (outcome.status, outcome.stderr, outcome.error)
    return outcome.stdout.strip()


Branch = Callable[..., Any]


def test_variables_are_independent(session: Any, branch: Branch) -> None:
    session.run("import numpy\nx = [1]\na = numpy.ones(1_000_000)\ndef f(): return len(x)")
    copy = branch(session)
    assert output_of(copy.run("x.append(2); a += 1; print(x, a[0], f())")) == "[1, 2] 2.0 2"
    assert output_of(session.run("x.append(9); print(x, a[0], f())")) == "[1, 9] 1.0 2"
    assert output_of(copy.run("print(x)")) == "[1, 2]"


def test_the_state_of_a_branch(session: Any, branch: Branch) -> None:
    session.run("1")
    copy = branch(session)
    state = copy.state()
    assert (state.parent, state.cells, state.is_busy) == (session.id, 1, False)
    assert state.limits == session.state().limits
    assert copy.run("1").cell == 2
    assert session.state().parent is None


@pytest.mark.parametrize("place", ["/work", "/tmp", "/dev/shm"])
def test_files_are_independent(session: Any, branch: Branch, place: str) -> None:
    session.run(f"import os\nos.makedirs('{place}/d/e')\nopen('{place}/d/e/f', 'w').write('before')")
    copy = branch(session)
    assert (
        output_of(copy.run(f"print(open('{place}/d/e/f').read()); open('{place}/d/e/f', 'w').write('copy')"))
        == "before"
    )
    assert output_of(session.run(f"print(open('{place}/d/e/f').read()); open('{place}/new', 'w')")) == "before"
    assert output_of(copy.run(f"print(open('{place}/d/e/f').read(), os.path.exists('{place}/new'))")) == "copy False"


def test_every_kind_of_file_is_copied(session: Any, branch: Branch) -> None:
    session.run(
        "import os\nos.symlink('a', 'link'); open('a', 'wb').write(bytes(range(256)) * 5000)\nos.chmod('a', 0o640)\n"
        "os.utime('a', (5, 5)); os.mkfifo('pipe'); os.mkdir('empty')\n"
        "open('closed', 'w').write('x'); os.chmod('closed', 0)"
    )
    copy = branch(session)
    assert (
        output_of(
            copy.run(
                "import stat\nf = os.stat('a')\nprint(os.readlink('link'), f.st_size, oct(f.st_mode & 0o777), "
                "f.st_mtime, f.st_uid == os.getuid(), stat.S_ISFIFO(os.stat('pipe').st_mode), os.listdir('empty'))\n"
                "os.chmod('closed', 0o600)\n"
                "print(open('closed').read(), open('a', 'rb').read() == bytes(range(256)) * 5000)"
            )
        )
        == "a 1280000 0o640 5.0 True True []\nx True"
    )
    assert copy.read_file("a") == bytes(range(256)) * 5000


def test_the_host_reads_the_files_of_each_branch(session: Any, branch: Branch) -> None:
    session.write_file("f", b"parent")
    copy = branch(session)
    copy.write_file("f", b"copy")
    copy.write_file("g/h", b"new")
    assert session.read_file("f") == b"parent"
    assert [file.path for file in session.files()] == ["f"]
    assert output_of(copy.run("print(open('f').read(), open('/work/g/h').read())")) == "copy new"
    assert [file.path for file in copy.run("1;", artifacts=["**"]).artifacts] == ["f", "g/h"]


def test_open_files_are_independent(session: Any, branch: Branch) -> None:
    session.run("f = open('log', 'w'); f.write('one '); f.flush()\nimport os\nos.makedirs('sub'); os.chdir('sub')")
    copy = branch(session)
    copy.run("f.write('copy'); f.flush()")
    session.run("f.write('parent'); f.flush()")
    assert output_of(copy.run("print(os.getcwd(), open('/work/log').read())")) == "/work/sub one copy"
    assert output_of(session.run("print(os.getcwd(), open('/work/log').read())")) == "/work/sub one parent"


def test_random_numbers_differ_by_default(session: Any, branch: Branch) -> None:
    session.run("import random, numpy\nrandom.seed(1); numpy.random.seed(1)")
    draw = "print(random.random(), numpy.random.rand())"
    first, second = branch(session), branch(session)
    same, again = branch(session, reseed=False), branch(session, reseed=False)
    drawn = [output_of(each.run(draw)) for each in (session, first, second)]
    assert len(set(drawn)) == 3
    assert output_of(same.run(draw)) == output_of(again.run(draw)) == drawn[0]


def test_a_branch_can_be_branched_and_so_on(session: Any) -> None:
    with contextlib.ExitStack() as stack:
        session.run("depth = 0; open('depth', 'w').write('0')")
        last = session
        for _ in range(15):
            (last,) = last.branch()
            stack.enter_context(contextlib.closing(last))
            outcome = last.run("depth += 1; open('/work/depth', 'w').write(str(depth)); print(open('depth').read())")
            assert outcome.ok, outcome.stderr
        with pytest.raises(CannotBranch, match="15 branches away"):
            last.branch()
        assert output_of(last.run(KILL_ALL)) == "0", "each branch adds a kernel layer, which is limited"
        assert output_of(last.run("print(depth)")) == "15"
        assert output_of(session.run("print(depth, open('depth').read())")) == "0 0"


def test_several_branches_are_created_all_or_none(session: Any) -> None:
    session.run("x = 5")
    copies = session.branch(4)
    assert len({copy.id for copy in copies}) == 4
    assert [output_of(copy.run(f"x += {n}; print(x)")) for n, copy in enumerate(copies)] == ["5", "6", "7", "8"]
    for copy in copies:
        copy.close()
    with pytest.raises(InvalidExecution, match="count is 1000, but there may be 100 sessions"):
        session.branch(1000)
    assert session.run("1").ok


def test_a_branch_outlives_its_parent_and_stays_isolated(roomy: belljar.Sandbox, branch: Branch) -> None:
    with roomy.session() as parent:
        parent.run("x = 3")
        copy = branch(parent)
        grandchild = branch(copy)
    copy.run("import os; os._exit(0)")
    assert output_of(grandchild.run("print(x); open('f', 'w').write('x')")) == "3"
    assert output_of(branch(grandchild).run("print(x, open('f').read())")) == "3 x"


def test_a_branch_that_runs_out_of_memory_ends_alone(roomy: belljar.Sandbox, branch: Branch) -> None:
    with roomy.session(memory_mb=100) as parent:
        parent.run("x = 3")
        copy, sibling = branch(parent), branch(parent)
        outcome = copy.run("y = bytearray(300 << 20)")
        assert outcome.status == "out_of_memory"
        with pytest.raises(SessionEnded) as caught:
            copy.run("1")
        assert caught.value.details["reason"] == "memory"
        assert output_of(parent.run("print(x)")) == output_of(sibling.run("print(x)")) == "3"


def test_branches_survive_the_death_of_their_parent(session: Any, branch: Branch) -> None:
    copy = branch(session)
    assert session.run("import os; os.abort()").status == "crashed"
    assert copy.run("1").ok


@pytest.mark.parametrize(
    ("code", "status", "reason"),
    [
        pytest.param("import os; os._exit(7)", "failed", "exit", id="exit"),
        pytest.param("import os; os.abort()", "crashed", "crash", id="crash"),
        pytest.param(
            "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass",
            "timed_out",
            "timeout",
            id="stuck",
        ),
        pytest.param(
            "import os; os.write(3, b'garbage'); import time; time.sleep(9)", "crashed", "crash", id="garbage"
        ),
    ],
)
def test_the_end_of_a_branch_is_reported(session: Any, branch: Branch, code: str, status: str, reason: str) -> None:
    copy = branch(session)
    outcome = copy.run(code, timeout=3 if reason == "timeout" else 60)
    assert outcome.status == status
    if reason == "exit":
        assert outcome.exit_code == 7
    with pytest.raises(SessionEnded) as caught:
        copy.run("1")
    assert caught.value.details["reason"] == reason
    assert session.run("1").ok


KILL_ALL = """
import os, signal
killed = []
for name in os.listdir('/proc'):
    if name.isdigit() and int(name) != os.getpid():
        try:
            os.kill(int(name), signal.SIGKILL)
            killed.append(name)
        except OSError:
            pass
try:
    os.kill(-1, signal.SIGKILL)
except OSError:
    pass
print(len(killed))
"""


def test_a_branch_cannot_kill_its_parent_nor_its_siblings(session: Any, branch: Branch) -> None:
    first, second = branch(session), branch(session)
    assert output_of(first.run(KILL_ALL)) == "0"
    assert session.run("1").ok
    assert second.run("1").ok


def test_killing_all_processes_does_not_reach_branches(session: Any, branch: Branch) -> None:
    copy = branch(session)
    session.run("import os; os.kill(-1, 9)")
    assert copy.run("1").ok


def test_a_branch_has_its_own_network_and_shared_memory(session: Any, branch: Branch) -> None:
    copy = branch(session)
    listen = "import socket\nserver = socket.create_server(('127.0.0.1', 8000))"
    assert copy.run(listen).ok
    assert session.run(listen).ok
    talk = "c = socket.create_connection(('127.0.0.1', 8000)); c.send(b'x'); print(server.accept()[0].recv(1))"
    assert output_of(copy.run(talk)) == "b'x'"


@pytest.mark.parametrize(
    ("code", "why"),
    [
        pytest.param(
            "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()",
            "threads",
            id="thread",
        ),
        pytest.param("import subprocess\nchild = subprocess.Popen(['sleep', '60'])", "child processes", id="child"),
        pytest.param(
            "import os\nif os.fork() == 0: os._exit(0)\nos.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)",
            "not waited for",
            id="zombie",
        ),
        pytest.param("import tempfile\nf = tempfile.TemporaryFile()", "deleted file", id="deleted_file"),
        pytest.param("import multiprocessing\nshared = multiprocessing.Array('i', 1000)", "shared", id="shared_memory"),
        pytest.param(
            "import numpy\nm = numpy.memmap('big', dtype='u1', mode='w+', shape=(10000,))", "shared", id="mapped_file"
        ),
        pytest.param("open('s', 'wb').truncate(3 << 30)", "files cannot be copied", id="huge_sparse_file"),
        pytest.param(
            "import os\nfor _ in range(80):\n    os.mkdir('d')\n    os.chdir('d')\nos.chdir('/work')",
            "files cannot be copied",
            id="deep_directories",
        ),
    ],
)
def test_state_that_cannot_be_copied_is_refused_with_a_reason(session: Any, code: str, why: str) -> None:
    assert session.run(code).ok
    with pytest.raises(CannotBranch, match=why):
        session.branch()
    assert session.run("1").ok


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("import os\nos.register_at_fork(after_in_child=lambda: os._exit(1))", id="copy_exits"),
        pytest.param(
            "import os\nos.register_at_fork(after_in_child=lambda: os.closerange(3, 99))", id="copy_closes_all"
        ),
        pytest.param("import os\nos.fork = None", id="no_fork"),
    ],
)
def test_a_failed_copy_is_refused_and_leaves_no_process(session: Any, host: Host, code: str) -> None:
    assert session.run(code).ok
    with pytest.raises((CannotBranch, SandboxFault)):
        session.branch()
    count = "import os; print(sum(name.isdigit() for name in os.listdir('/proc')))"
    host.wait_until(lambda: output_of(session.run(count)) == "1", "the copy is gone")


@pytest.mark.parametrize("count", [0, -1, True, 1.5, "2"])
def test_count_must_be_a_number_of_copies(session: Any, count: Any) -> None:
    with pytest.raises(InvalidExecution, match="count"):
        session.branch(count)


def test_a_running_cell_is_not_branched(session: Any) -> None:
    running = session.stream("print('up')\nimport time; time.sleep(60)", timeout=60)
    while not isinstance(next(running), Output):
        pass
    with pytest.raises(SessionBusy):
        session.branch()
    running.close()


def test_a_session_that_has_awaited_can_be_branched(session: Any, branch: Branch) -> None:
    session.run("import asyncio\nawait asyncio.sleep(0)")
    copy = branch(session)
    both = "async def f(n):\n    await asyncio.sleep(0.01); return n\nprint(await asyncio.gather(f(1), f(2)))"
    assert output_of(copy.run(both)) == output_of(session.run(both)) == "[1, 2]"


def test_a_branch_is_interrupted_alone_and_has_its_own_output(session: Any, branch: Branch) -> None:
    copy = branch(session)
    answers: list[Outcome] = []
    spinning = threading.Thread(
        target=lambda: answers.append(copy.run("print('c'); import time; time.sleep(60)", timeout=3))
    )
    spinning.start()
    assert output_of(session.run("print('p')")) == "p"
    spinning.join(30)
    assert (answers[0].status, answers[0].stdout) == ("timed_out", "c\n")
    assert output_of(copy.run("print('again')")) == "again"
    assert output_of(copy.run("!echo child")) == "child"


def test_the_program_sees_neither_a_child_nor_a_signal(session: Any, branch: Branch) -> None:
    session.run("import signal\nseen = []\nsignal.signal(signal.SIGCHLD, lambda *_: seen.append(1))")
    branch(session).close()
    code = "import os\ntry:\n    os.wait()\nexcept ChildProcessError:\n    print('none', seen)"
    assert output_of(session.run(code)) == "none []"
    assert output_of(branch(session).run(code)) == "none []"


def test_branches_share_memory_until_they_write(roomy: belljar.Sandbox, host: Host) -> None:
    with roomy.session(memory_mb=400) as session, contextlib.ExitStack() as stack:
        session.run("import numpy\na = numpy.ones(25_000_000)")
        before, counted_before = memory_of(roomy, host), session.state().memory_bytes
        assert before > 190_000_000
        copies = [stack.enter_context(contextlib.closing(copy)) for copy in session.branch(10)]
        assert memory_of(roomy, host) - before < 20_000_000  # a tenth of the session's memory
        assert session.state().memory_bytes - counted_before < 10_000_000, "each branch is charged separately"
        assert max(copy.state().memory_bytes for copy in copies) < 4_000_000
        assert output_of(copies[0].run("print(a.sum())")) == "25000000.0"
        copies[1].run("a += 1")
        assert copies[1].state().memory_bytes > 190_000_000
        assert output_of(session.run("print(a.sum())")) == "25000000.0"


def memory_of(box: Any, host: Host) -> int:
    """Bytes that all guests and zygotes of this sandbox have for themselves, shared ones counted once."""
    # Other sandboxes of these tests come and go meanwhile.
    first = box._portal.target._engine.sandbox._source._host._instance.uid_base
    total = 0
    for process in host.guest_processes():
        if process.uid in range(first, first + policy.UIDS_PER_INSTANCE):
            with contextlib.suppress(OSError):
                text = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
                total += sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))
    return total * 1024


def test_a_branch_is_isolated_like_any_session(session: Any, branch: Branch) -> None:
    copy = branch(branch(session))
    outcome = copy.run(
        "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        "print([libc.mount(b'x', b'/work', b'tmpfs', 0, None), libc.unshare(0x20000), libc.unshare(0x10000000), "
        "libc.umount2(b'/work', 2), libc.setns(0, 0x20000000), libc.chroot(b'/work'), libc.sethostname(b'x', 1)])\n"
        "for path in ('/x', '/usr/x', '/env/x', '/etc/x', '/dev/x', '/proc/sys/x'):\n"
        "    try:\n        open(path, 'w')\n        print('wrote', path)\n    except OSError:\n        pass\n"
        "print(open('/proc/self/uid_map').read().split() == [str(os.getuid())] * 2 + ['1'])"
    )
    assert output_of(outcome) == "[-1, -1, -1, -1, -1, -1, -1]\nTrue"
    denied = copy.run("with open('big', 'wb') as f:\n    for _ in range(300): f.write(b'x' * (1 << 20))")
    assert denied.error is not None
    assert denied.error.type == "OSError"


def test_files_that_do_not_fit_are_reported(roomy: belljar.Sandbox) -> None:
    with roomy.session(memory_mb=100, limits={"disk_mb": 120}) as session:
        for name in ("/work/a", "/tmp/a"):  # 60 MiB each: in pieces, so that the parent itself does not run out
            session.run(f"with open('{name}', 'wb') as f:\n    for _ in range(60): f.write(b'x' * (1 << 20))")
        with contextlib.suppress(CannotBranch):
            session.branch()[0].close()
        assert session.run("1").ok


def live_as_a_family(box: belljar.Sandbox) -> None:
    parent = box.session().open()
    parent.run("open('f', 'w').write('x' * 1000)")
    children = parent.branch(3)
    grandchild = children[0].branch()[0]
    children[1].run("import subprocess; subprocess.Popen(['sleep', '99'])")
    children[2].run("import os; os._exit(1)")
    parent.close()
    grandchild.close()
    for child in children:
        child.close()


def test_a_closed_family_leaves_nothing_behind(settings: Settings, host: Host) -> None:
    def ours() -> tuple[int, int, int]:
        left = host.leftovers().counts()
        return left.processes, left.cgroups, left.descriptors

    before = host.settled_leftovers()
    with belljar.Sandbox(settings=settings) as box:

        def is_quiet() -> bool:
            facts = box.facts()["sandbox"]
            most = 2 * settings.pool.ready_guests  # of two kinds
            return bool(facts["guests"] == facts["ready_guests"] == facts["jails"] == most)

        live_as_a_family(box)
        host.wait_until(is_quiet, "quiet")
        quiet = ours()
        for _ in range(4):
            live_as_a_family(box)
        host.wait_until(is_quiet, "quiet")
        host.wait_until(lambda: all(now <= then for now, then in zip(ours(), quiet, strict=True)), "nothing left")
    host.assert_nothing_new(before, "processes", "cgroups", "descriptors")


def test_many_threads_branch_one_session_concurrently(session: Any) -> None:
    session.run("x = 1")
    made: list[Any] = []
    refused: list[BaseException] = []

    def work() -> None:
        try:
            made.extend(session.branch())
        except SessionBusy as error:
            refused.append(error)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made
    assert len(made) + len(refused) == 6
    assert all(output_of(copy.run("print(x)")) == "1" for copy in made)
    for copy in made:
        copy.close()
