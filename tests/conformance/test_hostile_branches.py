"""Branching a session whose process forges the messages of the branch protocol.

Each attempt ends in bounded time with an error that blames the session; other sessions are unaffected, and nothing is
left behind. Also tests what a family of branches can reach of the kernel outside of branching.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import belljar
from belljar.backends.local.session.branch import admit
from belljar.contract.errors import CannotBranch, SessionEnded
from belljar.contract.execution import Outcome
from belljar.jail.cgroups import Cgroups, find_hierarchies
from belljar.settings import Settings

if TYPE_CHECKING:
    from tests.conftest import Host

#: Access to the session's own code in memory, which a program can change at will.
TAKEN_OVER = """
import ctypes, gc, os, signal, sys, time
gc.unfreeze()
(shell,) = [each for each in gc.get_objects() if type(each) is dict and '_serve_cells' in each and '__file__' in each]
channel, branching = shell['channel'], shell['branching']
libc = ctypes.CDLL(None, use_errno=True)

def send(peer, word, descriptors=()):
    channel.send(peer, {}, word, descriptors)

def admitted(peer):
    channel.receive(peer)
    os.write(writer, b'.')

def hostile(passer=None, copy=None, waits=True, answer=b'branched'):
    def _branch(peer, order, descriptors):
        global writer
        reader, writer = os.pipe()
        def honest_copy():
            shell['_become_copy'](peer, list(descriptors), [], None)
            shell['_serve_cells'](peer)
        def honest_passer():
            send(peer, b'passing')
            admitted(peer)
            if os.fork() == 0:
                copy(peer, descriptors) if copy else honest_copy()
                os._exit(0)
        child = os.fork()
        if child == 0:
            os.dup2(descriptors[0], 3)
            passer(peer, descriptors) if passer else honest_passer()
            os._exit(0)
        os.close(writer)
        os.read(reader, 1)
        os.close(reader)
        if waits:
            os.waitpid(child, 0)
        if answer is not None:
            send(peer, answer)
    shell['_branch'] = _branch
"""

ATTEMPTS = {
    "answer_is_nonsense": ("hostile(passer=lambda *_: None, answer=b'what?')", "what"),
    "answers_before_it_forks": (
        "def _branch(peer, order, descriptors):\n    send(peer, b'branched')\nshell['_branch'] = _branch",
        "as it should",
    ),
    "answers_in_json": (
        "def _branch(peer, order, descriptors):\n    channel.send(peer, {'ended': 1})\n    time.sleep(60)\n"
        "shell['_branch'] = _branch",
        "session has ended: crash",
    ),
    "passer_says_nonsense": ("hostile(passer=lambda peer, _: send(peer, b'what?'))", "as it should"),
    "passer_says_copy_first": ("hostile(passer=lambda peer, _: send(peer, b'copy'))", "as it should"),
    "passer_brings_descriptors": (
        "hostile(passer=lambda peer, _: (send(peer, b'passing', [0] * 9), time.sleep(60)), waits=False)",
        "as it should",
    ),
    "passer_says_it_twice": (
        "hostile(passer=lambda peer, _: (send(peer, b'passing'), send(peer, b'passing'), admitted(peer), "
        "time.sleep(60)), waits=False)",
        "as it should",
    ),
    "passer_ends_at_once": ("hostile(passer=lambda *_: None)", "as it should"),
    "session_is_its_own_passer": (
        "def _branch(peer, order, descriptors):\n    import socket\n    own = socket.socket(fileno=descriptors[0])\n"
        "    send(own, b'passing')\n    time.sleep(60)\nshell['_branch'] = _branch",
        "did not answer|ended",
    ),
    "copy_of_another_cgroup": (
        # The intermediate process is admitted, but another child of the session claims to be the copy.
        "def _branch(peer, order, descriptors):\n"
        "    if os.fork() == 0:\n"
        "        os.dup2(descriptors[0], 3); send(peer, b'passing'); channel.receive(peer); os._exit(0)\n"
        "    os.wait()\n"
        "    if os.fork() == 0:\n"
        "        os.dup2(descriptors[0], 3); send(peer, b'copy'); time.sleep(60); os._exit(0)\n"
        "    send(peer, b'branched')\n"
        "shell['_branch'] = _branch",
        "as it should",
    ),
    "copy_says_nonsense": (
        "hostile(copy=lambda peer, _: (send(peer, b'copy'), channel.receive(peer, 5), send(peer, b'what?'), "
        "time.sleep(60)))",
        "it says: what",
    ),
    "copy_brings_descriptors": (
        "hostile(copy=lambda peer, _: (send(peer, b'copy'), channel.receive(peer, 5), send(peer, b'joined', [0]), "
        "time.sleep(60)))",
        "before it had its place",
    ),
    "copy_never_joins": (
        "hostile(copy=lambda peer, _: (send(peer, b'copy'), channel.receive(peer, 5), send(peer, b'joined'), "
        "time.sleep(60)))",
        "rights",
    ),
    "copy_keeps_its_capabilities": (
        "def join(place, shield):\n    for each in zip(place, branching._JOINED):\n        branching._join(*each)\n"
        "branching.join = join",
        "rights",
    ),
    "copy_leaves_a_child_with_capabilities": (
        "honest = branching.join\ndef join(place, shield):\n"
        "    if os.fork() == 0:\n        time.sleep(60)\n    honest(place, shield)\nbranching.join = join",
        "other processes behind",
    ),
    "copy_joins_another_place": (
        "def join_family(_):\n    branching._join(os.open('/proc/self/ns/user', os.O_RDONLY), 0x10000000)\n"
        "branching.join_family = join_family",
        "setns",
    ),
    "copy_is_silent": ("hostile(copy=lambda *_: time.sleep(60))", "said nothing within"),
    "copy_stays_outside": (
        "hostile(copy=lambda peer, _: (send(peer, b'copy'), time.sleep(60)))",
        "did not move into its place within",
    ),
    "passer_never_ends": (
        "hostile(passer=lambda peer, d: (send(peer, b'passing'), admitted(peer), "
        "os.fork() or (shell['_become_copy'](peer, list(d), [], None), shell['_serve_cells'](peer)), time.sleep(60)), "
        "waits=False)",
        "other processes behind",
    ),
    "passer_stops_itself": (
        "hostile(passer=lambda peer, d: (send(peer, b'passing'), admitted(peer), "
        "os.fork() or (shell['_become_copy'](peer, list(d), [], None), shell['_serve_cells'](peer)), "
        "os.kill(os.getpid(), signal.SIGSTOP)), waits=False)",
        "other processes behind",
    ),
    "passer_forks_many": (
        "hostile(passer=lambda peer, d: (send(peer, b'passing'), admitted(peer), "
        "[os.fork() or time.sleep(60) for _ in range(20)]), waits=False)",
        "said nothing within",
    ),
}


@pytest.fixture(scope="module")
def roomy(settings: Settings) -> Iterator[belljar.Sandbox]:
    sessions = dataclasses.replace(settings.sessions, max_sessions=100)
    pool = dataclasses.replace(settings.pool, ready_guests=1)
    with belljar.Sandbox(settings=dataclasses.replace(settings, sessions=sessions, pool=pool)) as opened:
        yield opened


@pytest.fixture(scope="module")
def bystander(roomy: belljar.Sandbox) -> Iterator[Any]:
    with roomy.session() as opened:
        opened.run("x = 1")
        yield opened


def output_of(outcome: Outcome) -> str:
    assert outcome.ok, (outcome.status, outcome.stderr, outcome.error)
    return outcome.stdout.strip()


def attempt(box: belljar.Sandbox, code: str, why: str) -> None:
    """Patch a session, branch it, and close it whatever the result."""
    with contextlib.suppress(SessionEnded), box.session() as session:
        assert session.run(TAKEN_OVER + code).ok
        with pytest.raises(CannotBranch, match=why):
            session.branch()


SLOW = {  # these end by a timeout
    "session_is_its_own_passer",
    "copy_leaves_a_child_with_capabilities",
    "copy_is_silent",
    "copy_stays_outside",
    "passer_never_ends",
    "passer_stops_itself",
    "passer_forks_many",
}


@pytest.mark.parametrize("name", ATTEMPTS)
def test_a_hostile_session_is_refused_and_leaves_nothing(
    roomy: belljar.Sandbox, bystander: Any, host: Host, name: str
) -> None:
    def ours() -> tuple[int, ...]:
        left = host.leftovers().counts()
        return (left.processes,) if name in SLOW else (left.processes, left.cgroups, left.descriptors)

    if name not in SLOW:  # otherwise run once first, which creates what is kept for reuse
        attempt(roomy, *ATTEMPTS[name])
    settle(roomy, host)
    before = ours()
    began = time.monotonic()
    attempt(roomy, *ATTEMPTS[name])
    assert time.monotonic() - began < 40
    host.wait_until(lambda: all(now <= then for now, then in zip(ours(), before, strict=True)), f"{before} as before")
    assert output_of(bystander.run("print(x)")) == "1"
    (copy,) = bystander.branch()
    with contextlib.closing(copy):
        assert output_of(copy.run("print(x)")) == "1"


def settle(box: belljar.Sandbox, host: Host) -> None:
    def is_quiet() -> bool:
        facts = box.facts()["sandbox"]
        return bool(facts["guests"] == facts["ready_guests"] + 1)  # and the bystander

    host.wait_until(is_quiet, "quiet")


def test_a_silent_session_is_ended_and_blamed(roomy: belljar.Sandbox, bystander: Any) -> None:
    with contextlib.suppress(SessionEnded), roomy.session() as session:
        session.run(TAKEN_OVER + "shell['_branch'] = lambda *_: time.sleep(60)")
        with pytest.raises(CannotBranch, match="did not answer when it was told to branch"):
            session.branch()
        with pytest.raises(SessionEnded):
            session.run("1")
    assert output_of(bystander.run("print(x)")) == "1"


#: One process claims over both channels to be the copy, then fails the second branch before the first.
COPY_OF_TWO = """
import socket
near, far = socket.socketpair()
reader, writer = os.pipe()
children = []

def pose(peer, descriptor):
    os.dup2(descriptor, 3)
    send(peer, b'passing')
    channel.receive(peer)
    send(peer, b'copy')
    os.write(writer, b'.')

def _branch(peer, order, descriptors):
    if children:
        socket.send_fds(near, [b'.'], [descriptors[0]])
    else:
        children.append(os.fork())
        if children[0] == 0:
            pose(peer, descriptors[0])
            pose(peer, socket.recv_fds(far, 1, 1)[1][0])
            send(peer, b'what?')
            time.sleep(60)
            os._exit(0)
    os.read(reader, 1)
    for each in descriptors:
        os.close(each)
    send(peer, b'branched')

shell['_branch'] = _branch
"""


def test_one_process_cannot_be_the_copy_of_two_branches(roomy: belljar.Sandbox, bystander: Any, host: Host) -> None:
    with contextlib.suppress(SessionEnded), roomy.session() as session:
        assert session.run(TAKEN_OVER + COPY_OF_TWO).ok
        with pytest.raises(CannotBranch):
            session.branch(2)
    settle(roomy, host)
    assert output_of(bystander.run("print(x)")) == "1"


def test_an_extra_message_ends_the_branch(roomy: belljar.Sandbox, host: Host) -> None:
    with roomy.session() as session:
        session.run(TAKEN_OVER + "shell['_serve_cells'] = lambda peer: (send(peer, b'joined'), time.sleep(60))")
        (copy,) = session.branch()
        host.wait_until(lambda: has_crashed(copy), "the copy is ended")
        assert session.run("1").ok


def has_crashed(session: Any) -> bool:
    try:
        session.run("1")
    except SessionEnded as error:
        return bool(error.details["reason"] == "crash")
    return False


ZOMBIE = (
    "hostile(passer=lambda peer, d: (send(peer, b'passing'), admitted(peer), "
    "os.fork() or (shell['_become_copy'](peer, list(d), [], None), shell['_serve_cells'](peer))), waits=False)"
)


def test_an_unreaped_intermediate_process_blocks_nothing(roomy: belljar.Sandbox, bystander: Any, host: Host) -> None:
    began, used = time.monotonic(), time.process_time()
    with contextlib.suppress(SessionEnded), roomy.session() as session:
        session.run(TAKEN_OVER + ZOMBIE)
        with pytest.raises(CannotBranch, match="left other processes behind"):
            session.branch()
        with pytest.raises(SessionEnded):  # the family ended with it
            session.run("1")
    assert time.monotonic() - began < 30
    assert time.process_time() - used < 2, "waiting costs next to nothing"
    settle(roomy, host)
    assert output_of(bystander.run("print(x)")) == "1"


# ---- what a family can reach outside of a branch

REACH = """
import ctypes, os, socket, struct
libc = ctypes.CDLL(None, use_errno=True)

def outcome(result):
    return os.strerror(ctypes.get_errno()) if result < 0 else 'done'

def capabilities():
    names = 'CapInh:', 'CapPrm:', 'CapEff:', 'CapAmb:'
    return {line.split()[1] for line in open('/proc/self/status') if line.startswith(names)}

def in_a_fork(work):
    read, write = os.pipe()
    if os.fork() == 0:
        os.write(write, repr(work()).encode())
        os._exit(0)
    os.wait()
    return os.read(read, 4096).decode()

def join(pid, name, kind):
    try:
        place = os.open(f'/proc/{pid}/ns/{name}', os.O_RDONLY)
    except OSError as error:
        return 'closed'
    return outcome(libc.setns(place, kind)), sorted(capabilities())

def join_all(pid):
    return [in_a_fork(lambda: join(pid, name, kind)) for name, kind in
            (('user', 0x10000000), ('mnt', 0x20000), ('net', 0x40000000), ('ipc', 0x8000000))]
"""
HELD = ["('Operation not permitted', ['0000000000000000'])"] * 4


def pid_of(session: Any) -> str:
    return output_of(session.run("import os; print(os.getpid())"))


def test_a_session_cannot_join_its_branches_outside_of_branching(roomy: belljar.Sandbox) -> None:
    with roomy.session() as session:
        session.run(REACH)
        (copy,) = session.branch()
        with contextlib.closing(copy):
            assert output_of(session.run(f"print(join_all({pid_of(copy)}))")) == str(HELD)
            (further,) = copy.branch()
            with contextlib.closing(further):
                assert output_of(copy.run(f"print(join_all({pid_of(further)}))")) == str(HELD)
                assert output_of(session.run(f"print(join_all({pid_of(further)}))")) == str(HELD)


def test_branches_hold_no_capability_and_cannot_touch_netfilter(roomy: belljar.Sandbox) -> None:
    replace = "it = socket.socket(); print(outcome(libc.setsockopt(it.fileno(), 0, 64, bytes(96), 96)))"
    with roomy.session() as session:
        session.run(REACH)
        (copy,) = session.branch()
        with contextlib.closing(copy):
            for each in (session, copy):
                assert output_of(each.run("print(capabilities())")) == "{'0000000000000000'}"
                assert output_of(each.run(replace)) != "done"
            assert output_of(copy.run(replace)) in ("Operation not permitted", "Protocol not available")


HAND_OVER = """
import socket
family = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
"""
SEND_A_SOCKET = "own = socket.socket(); socket.send_fds(family[0], [b'x'], [own.fileno()]);"
TRY_NETFILTER = """
_, (number, *_), _, _ = socket.recv_fds(family[1], 1, 1)
theirs, refused = socket.socket(fileno=number), []
for level, option in ((0, 64), (41, 64)):  # IPT_SO_SET_REPLACE, IP6T_SO_SET_REPLACE
    for ask in (lambda: theirs.setsockopt(level, option, bytes(1024)), lambda: theirs.getsockopt(level, option, 1024)):
        try:
            ask()
        except OSError as error:
            refused.append(error.errno)
print(refused)
"""


def test_a_passed_socket_gives_no_access_to_netfilter(roomy: belljar.Sandbox) -> None:
    with roomy.session() as session:
        assert session.run(HAND_OVER).ok
        [branch] = session.branch()
        with branch:
            assert branch.run(SEND_A_SOCKET).ok
            # The session owns the user namespace of that network, so only the filter of socket options prevents it.
            assert output_of(session.run(TRY_NETFILTER)) == str([errno.ENOPROTOOPT] * 4)


def test_landlock_is_out_of_reach_between_branches(roomy: belljar.Sandbox) -> None:
    calls = (
        "print(outcome(libc.syscall(444, bytes(8), ctypes.c_size_t(8), 0)), '/', "
        "outcome(libc.syscall(445, 3, 1, bytes(12), 0)), '/', outcome(libc.syscall(446, -1, 0)))"
    )
    expected = "Function not implemented / Function not implemented / Bad file descriptor"
    with roomy.session() as session:
        session.run(REACH)
        (copy,) = session.branch()
        with contextlib.closing(copy):
            assert output_of(session.run(calls)) == output_of(copy.run(calls)) == expected


def test_a_copy_joins_once(roomy: belljar.Sandbox) -> None:
    twice = (
        "honest = branching.join\ndef join(place, shield):\n    global again\n"
        "    again = libc.setns(os.open('/proc/self/ns/user', os.O_RDONLY), 0x10000000), ctypes.get_errno()\n"
        "    honest(place, shield)\nbranching.join = join"
    )
    with roomy.session() as session:
        session.run(TAKEN_OVER + twice)
        (copy,) = session.branch()
        with contextlib.closing(copy):
            assert output_of(copy.run("print(again)")) == "(-1, 1)"


def test_constant_requests_of_sessions_cost_little_and_block_nothing(roomy: belljar.Sandbox, bystander: Any) -> None:
    ask = (
        "import threading, ctypes, os\nlibc = ctypes.CDLL(None)\nown = os.open('/proc/self/ns/user', os.O_RDONLY)\n"
        "def ask():\n    while True:\n        libc.setns(own, 0x10000000)\n"
        "for _ in range(16): threading.Thread(target=ask, daemon=True).start()"
    )
    with roomy.session() as noisy:
        assert noisy.run(ask).ok
        began, used = time.monotonic(), time.process_time()
        for _ in range(3):
            (copy,) = bystander.branch()
            copy.close()
        time_out = time.monotonic() - began
        assert time_out < 20
        assert time.process_time() - used < 0.5 * time_out + 0.5


# ---- reused pids


@pytest.fixture
def innocent() -> Iterator[int]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process.pid
        assert process.poll() is None, "it was killed"
        process.kill()


def cgroups_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cgroup").read_text()


def test_the_pid_of_an_ended_process_is_not_admitted(settings: Settings, innocent: int) -> None:
    before = cgroups_of(innocent)
    with subprocess.Popen(["true"]) as ended_process:
        gone = os.pidfd_open(ended_process.pid)
    cgroups = Cgroups(find_hierarchies(), f"{settings.jail.cgroup_parent}/stale")
    cgroups.open()
    jail = cgroups.jail(0)
    try:
        with pytest.raises(CannotBranch, match="has ended"):
            admit(jail, innocent, gone)
        assert cgroups_of(innocent) == before
        jail.admit(innocent)  # as if the check came too late
        assert cgroups_of(innocent) != before
        jail.put_back(innocent)
        assert cgroups_of(innocent) == before
        jail.kill_all()
    finally:
        os.close(gone)
        jail.close()
        cgroups.close()
