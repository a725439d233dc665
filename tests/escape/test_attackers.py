"""Programs that send messages over the guest's own socket: malformed, forged, early, late, too many.

The host responds in time to anything they send, keeps none of it, and reports only ends that the kernel saw; the
session continues or ends with a reason, and other sessions are not affected.
"""

from __future__ import annotations

import contextlib
import dataclasses
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import belljar
from belljar.contract.errors import InvalidExecution, SessionEnded
from belljar.settings import Settings

#: Finds the socket and defines functions that send as the guest would.
PREAMBLE = """
import _socket, os, sys, time
peer = _socket.socket(fileno=os.dup(3))
peer.setblocking(False)

def raw(packet, *descriptors):
    rights = b"".join(each.to_bytes(4, "little") for each in descriptors)
    try:
        peer.sendmsg([packet], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)] if descriptors else [])
    except (BlockingIOError, OSError):
        pass

def send(text, blob=b"", *descriptors):
    raw(len(text).to_bytes(4, "big") + text + blob, *descriptors)

def planted(count):
    made = os.memfd_create("planted")
    os.write(made, bytes(4096))
    return [made] * count
"""

#: What the program sends. NUMBER stands for the running cell.
MESSAGES = {
    "nothing": "raw(b'')",
    "nothing_twice": "raw(b''); raw(b'')",
    "nothing_with_descriptors": "raw(b'', *planted(3))",
    "two_bytes": "raw(b'ab')",
    "shorter_than_it_says": "raw(b'\\0\\0\\1\\0{}')",
    "length_of_gigabytes": "raw(b'\\xff\\xff\\xff\\xff{}')",
    "no_json": "send(b'{\"ended\":')",
    "no_text": "send(b'\\xff\\xfe\\0')",
    "a_list": "send(b'[1]')",
    "deep": "send(b'[' * 50_000 + b']' * 50_000)",
    "deep_object": "send(b'{\"a\":' * 15_000 + b'1' + b'}' * 15_000)",
    "long_number": "send(b'{\"ended\":' + b'9' * 50_000 + b',\"error\":null}')",
    "packet_too_large": "raw(b'\\0\\0\\0\\0' + bytes(150_000))",
    "much_junk": "raw(bytes(119_000))",
    "error_is_a_number": 'send(b\'{"ended":NUMBER,"error":5}\')',
    "no_error": "send(b'{\"ended\":NUMBER}')",
    "ended_is_text": 'send(b\'{"ended":"NUMBER","error":null}\')',
    "ended_is_true": 'send(b\'{"ended":true,"error":null}\')',
    "error_of_wrong_types": 'send(b\'{"ended":NUMBER,"error":{"type":[],"message":{},"traceback":{"a":1}}}\')',
    "error_of_lone_halves": 'send(b\'{"ended":NUMBER,"error":{"type":"\\\\ud800","message":"\\\\udfff"}}\')',
    "long_error": 'send(b\'{"ended":NUMBER,"error":{"type":"A","message":"\' + b\'x\' * 100_000 + b\'"}}\')',
    "claims_a_kill": 'send(b\'{"ended":NUMBER,"error":null,"oom_kills":3,"status":9,"exit_code":9}\')',
    "ended_with_descriptors": "send(b'{\"ended\":NUMBER,\"error\":null}', b'', *planted(1))",
    "ended_with_many_descriptors": "send(b'{\"ended\":NUMBER,\"error\":null}', b'', *planted(253))",
    "ended_with_itself": "send(b'{\"ended\":NUMBER,\"error\":null}', b'', 3, peer.fileno())",
    "ended_twice": 'send(b\'{"ended":NUMBER,"error":null}\'); send(b\'{"ended":NUMBER,"error":null}\')',
    "too_early": 'send(b\'{"ended":1000,"error":null}\')',
    "too_late": 'send(b\'{"ended":0,"error":null}\')',
    "branched": "send(b'', b'branched')",
    "first_word_again": "send(b'', b'here', *planted(4))",
    "ready_again": "send(b'', b'ready')",
    "failed_files": 'send(b\'{"failed":"files","reason":"\\\\u001b[31m"}\')',
    "failed_walls": 'send(b\'{"failed":"seccomp","reason":1}\')',
    "flood": '[send(b\'{"ended":7,"error":null}\') for _ in range(5000)]',
    "flood_of_descriptors": "[send(b'', b'branched', *planted(253)) for _ in range(50)]",
    "no_more_from_here": "peer.shutdown(_socket.SHUT_WR)",
    "stops_reading": "peer.shutdown(_socket.SHUT_RD)",
    "closed": "os.close(3); peer.close()",
    "pipes_of_displays": (
        "[os.write(int(name), bytes(range(256)) * 40) for name in os.listdir('/proc/self/fd') if int(name) > 3 and "
        "'pipe:' in os.readlink(f'/proc/self/fd/{name}') and int(name) < 1000]"
    ),
}
FEW_MESSAGES = ("nothing_twice", "ended_twice", "first_word_again", "flood", "closed", "claims_a_kill")
_STABLE_LOOKS = 15
_OWN_EXIT = 70  # exit code of the guest's own code if it cannot answer


@pytest.fixture(scope="module")
def box(settings: Settings) -> Iterator[belljar.Sandbox]:
    pool = dataclasses.replace(settings.pool, jail_seconds=0.2, ready_guests=1)
    with belljar.Sandbox(settings=dataclasses.replace(settings, pool=pool)) as opened:
        yield opened


@pytest.fixture(scope="module")
def neighbour(box: belljar.Sandbox) -> Iterator[belljar.Session]:
    with box.session() as session:
        assert session.run("mine = 41").ok
        with box.session(tools=[add]) as other:  # creates everything that is created on first use
            other.run("import os; os.abort()")
        assert box.run("1").ok
        yield session


@pytest.fixture
def unharmed(box: belljar.Sandbox, neighbour: belljar.Session, host: Any) -> Iterator[None]:
    """Check that the neighbour session still works and that this process holds no more descriptors than before."""
    check_opens(box)
    before = stable_descriptors(host)
    yield
    assert neighbour.run("print(mine + 1)").stdout == "42\n"
    check_opens(box)
    host.wait_until(lambda: stable_descriptors(host) <= before, "descriptors are closed")
    assert not [each for each in descriptors() if "planted" in each]


def check_opens(box: belljar.Sandbox) -> None:
    """Open a session; afterwards a guest with its descriptors is ready for the next one."""
    with box.session() as session:
        assert session.run("print(1)").stdout == "1\n"


def stable_descriptors(host: Any) -> int:
    """Return how many descriptors are open once no guest starts or ends."""
    seen: list[int] = []

    def is_stable() -> bool:
        seen.append(len(descriptors()))
        return len(seen) >= _STABLE_LOOKS and len(set(seen[-_STABLE_LOOKS:])) == 1

    host.wait_until(is_stable, "no guest starts or ends")
    return seen[-1]


def descriptors() -> list[str]:
    """Return the open descriptors without those of cgroups, some of which are kept when a jail is destroyed."""
    found = []
    for each in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            found.append(str(each.readlink()))
    return [each for each in found if not each.startswith("/sys/fs/cgroup")]


def add(a: int) -> int:
    """Add one."""
    return a + 1


@pytest.mark.usefixtures("unharmed")
@pytest.mark.parametrize(
    ("word", "then"),
    [
        *((word, "") for word in MESSAGES),
        *((word, then) for word in FEW_MESSAGES for then in ("os._exit(0)", "time.sleep(60)")),
    ],
)
def test_messages_of_a_cell(box: belljar.Sandbox, word: str, then: str) -> None:
    code = f"{PREAMBLE}\n{MESSAGES[word].replace('NUMBER', '2')}\n{then}"
    with box.session() as session:
        assert session.run("x = 1").ok
        outcome = session.run(code, timeout=1.5)
        assert outcome.status in ("ok", "failed", "crashed", "timed_out"), outcome
        assert (outcome.exit_code, outcome.signal) in (
            (0, None),
            (1, None),
            (_OWN_EXIT, None),
            (None, "SIGKILL"),
        ), outcome
        if outcome.error is not None and outcome.error.type != "SessionEnded":
            assert len(outcome.error.message) <= 4000
        with contextlib.suppress(SessionEnded):
            following = session.run("print(x)", timeout=1.5)
            assert following.stdout in ("1\n", ""), following


@pytest.mark.usefixtures("unharmed")
@pytest.mark.parametrize("word", MESSAGES)
def test_messages_between_cells(box: belljar.Sandbox, word: str) -> None:
    code = f"""
import threading
def send_later():
{textwrap.indent(PREAMBLE, "    ")}
    begin.wait()
    {MESSAGES[word].replace("NUMBER", "2")}
begin = threading.Event()
threading.Thread(target=send_later, daemon=True).start()
threading.Timer(0.05, begin.set).start()
"""
    with box.session() as session:
        assert session.run(code).ok
        with contextlib.suppress(SessionEnded):
            for _ in range(3):
                outcome = session.run("import time; time.sleep(0.1)", timeout=1.5)
                assert outcome.status in ("ok", "failed", "crashed", "timed_out"), outcome


@pytest.mark.usefixtures("unharmed")
@pytest.mark.parametrize("word", MESSAGES)
def test_messages_while_a_session_opens(box: belljar.Sandbox, word: str) -> None:
    """Belljar's code imports a module of the caller after the first message and before the second."""
    code = f"{PREAMBLE}\n{MESSAGES[word].replace('NUMBER', '1')}\nos._exit(0)"
    with contextlib.suppress(InvalidExecution), box.session(tools=[add], files={"fcntl.py": code}) as session:
        assert word == "ready_again", "only the expected message opens a session"
        with contextlib.suppress(SessionEnded):
            outcome = session.run("1")
            assert outcome.error is not None
            assert outcome.error.type == "SessionEnded"


@pytest.mark.usefixtures("unharmed")
def test_a_program_cannot_send_messages(box: belljar.Sandbox) -> None:
    """The socket of a one-shot program is closed before any code of its caller runs."""
    code = textwrap.dedent("""
    import _socket, os
    word = bytes(4) + b"started"
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            try:
                own = os.open("/usr", os.O_PATH).to_bytes(4, "little")
                peer = _socket.socket(fileno=os.dup(int(name)))
                peer.sendmsg([word], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, own)])
            except OSError:
                pass
    """)
    files = {f"{name}.py": code for name in ("json", "struct", "fcntl")}
    outcome = box.run(f"{code}\nprint('held')", files=files, tools=[add], artifacts=["*.txt", "bin/*", "share/*"])
    assert (outcome.status, outcome.artifacts) in (("ok", ()), ("failed", ()))
