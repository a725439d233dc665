"""Programs that speak the guest's part themselves over its own socket: malformed, forged, early, late, too much.

Whatever they say, the host answers in time, keeps nothing of what they send, and reports no end that the kernel did
not see; their session goes on or has ended for a reason, and the session next to it notices nothing.
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

#: How it finds the socket, and speaks as the guest would.
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

def say(text, blob=b"", *descriptors):
    raw(len(text).to_bytes(4, "big") + text + blob, *descriptors)

def planted(count):
    made = os.memfd_create("planted")
    os.write(made, bytes(4096))
    return [made] * count
"""

#: What it says. NUMBER stands for the cell that runs.
WORDS = {
    "nothing": "raw(b'')",
    "nothing_twice": "raw(b''); raw(b'')",
    "nothing_with_descriptors": "raw(b'', *planted(3))",
    "two_bytes": "raw(b'ab')",
    "shorter_than_it_says": "raw(b'\\0\\0\\1\\0{}')",
    "length_of_gigabytes": "raw(b'\\xff\\xff\\xff\\xff{}')",
    "no_json": "say(b'{\"ended\":')",
    "no_text": "say(b'\\xff\\xfe\\0')",
    "a_list": "say(b'[1]')",
    "deep": "say(b'[' * 50_000 + b']' * 50_000)",
    "deep_object": "say(b'{\"a\":' * 15_000 + b'1' + b'}' * 15_000)",
    "long_number": "say(b'{\"ended\":' + b'9' * 50_000 + b',\"error\":null}')",
    "packet_too_large": "raw(b'\\0\\0\\0\\0' + bytes(150_000))",
    "much_junk": "raw(bytes(119_000))",
    "error_is_a_number": 'say(b\'{"ended":NUMBER,"error":5}\')',
    "no_error": "say(b'{\"ended\":NUMBER}')",
    "ended_is_text": 'say(b\'{"ended":"NUMBER","error":null}\')',
    "ended_is_true": 'say(b\'{"ended":true,"error":null}\')',
    "error_of_wrong_types": 'say(b\'{"ended":NUMBER,"error":{"type":[],"message":{},"traceback":{"a":1}}}\')',
    "error_of_lone_halves": 'say(b\'{"ended":NUMBER,"error":{"type":"\\\\ud800","message":"\\\\udfff"}}\')',
    "long_error": 'say(b\'{"ended":NUMBER,"error":{"type":"A","message":"\' + b\'x\' * 100_000 + b\'"}}\')',
    "claims_a_kill": 'say(b\'{"ended":NUMBER,"error":null,"oom_kills":3,"status":9,"exit_code":9}\')',
    "ended_with_descriptors": "say(b'{\"ended\":NUMBER,\"error\":null}', b'', *planted(1))",
    "ended_with_many_descriptors": "say(b'{\"ended\":NUMBER,\"error\":null}', b'', *planted(253))",
    "ended_with_itself": "say(b'{\"ended\":NUMBER,\"error\":null}', b'', 3, peer.fileno())",
    "ended_twice": 'say(b\'{"ended":NUMBER,"error":null}\'); say(b\'{"ended":NUMBER,"error":null}\')',
    "too_early": 'say(b\'{"ended":1000,"error":null}\')',
    "too_late": 'say(b\'{"ended":0,"error":null}\')',
    "branched": "say(b'', b'branched')",
    "first_word_again": "say(b'', b'here', *planted(4))",
    "ready_again": "say(b'', b'ready')",
    "failed_files": 'say(b\'{"failed":"files","reason":"\\\\u001b[31m"}\')',
    "failed_walls": 'say(b\'{"failed":"seccomp","reason":1}\')',
    "flood": '[say(b\'{"ended":7,"error":null}\') for _ in range(5000)]',
    "flood_of_descriptors": "[say(b'', b'branched', *planted(253)) for _ in range(50)]",
    "no_more_from_here": "peer.shutdown(_socket.SHUT_WR)",
    "deaf": "peer.shutdown(_socket.SHUT_RD)",
    "closed": "os.close(3); peer.close()",
    "pipes_of_displays": (
        "[os.write(int(name), bytes(range(256)) * 40) for name in os.listdir('/proc/self/fd') if int(name) > 3 and "
        "'pipe:' in os.readlink(f'/proc/self/fd/{name}') and int(name) < 1000]"
    ),
}
FEW_WORDS = ("nothing_twice", "ended_twice", "first_word_again", "flood", "closed", "claims_a_kill")
_SETTLED_LOOKS = 15
_OWN_EXIT = 70  # of the guest's own code, once it cannot answer


@pytest.fixture(scope="module")
def box(settings: Settings) -> Iterator[belljar.Sandbox]:
    pool = dataclasses.replace(settings.pool, jail_seconds=0.2, ready_guests=1)
    with belljar.Sandbox(settings=dataclasses.replace(settings, pool=pool)) as opened:
        yield opened


@pytest.fixture(scope="module")
def neighbour(box: belljar.Sandbox) -> Iterator[belljar.Session]:
    with box.session() as session:
        assert session.run("mine = 41").ok
        with box.session(tools=[add]) as other:  # what is made at first use is there from now on
            other.run("import os; os.abort()")
        assert box.run("1").ok
        yield session


@pytest.fixture
def unharmed(box: belljar.Sandbox, neighbour: belljar.Session, host: Any) -> Iterator[None]:
    """The neighbour lives, and we hold no more descriptors than before."""
    still_opens(box)
    before = settled_descriptors(host)
    yield
    assert neighbour.run("print(mine + 1)").stdout == "42\n"
    still_opens(box)
    host.wait_until(lambda: settled_descriptors(host) <= before, "descriptors are closed")
    assert not [each for each in descriptors() if "planted" in each]


def still_opens(box: belljar.Sandbox) -> None:
    """After a session that was opened there is a guest ready for the next one, and that has descriptors."""
    with box.session() as session:
        assert session.run("print(1)").stdout == "1\n"


def settled_descriptors(host: Any) -> int:
    """How many there are once no guest comes or goes."""
    seen: list[int] = []

    def has_settled() -> bool:
        seen.append(len(descriptors()))
        return len(seen) >= _SETTLED_LOOKS and len(set(seen[-_SETTLED_LOOKS:])) == 1

    host.wait_until(has_settled, "no guest comes or goes")
    return seen[-1]


def descriptors() -> list[str]:
    """Not those of cgroups: of cells that are given up, some are kept."""
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
        *((word, "") for word in WORDS),
        *((word, then) for word in FEW_WORDS for then in ("os._exit(0)", "time.sleep(60)")),
    ],
)
def test_words_of_a_cell(box: belljar.Sandbox, word: str, then: str) -> None:
    code = f"{PREAMBLE}\n{WORDS[word].replace('NUMBER', '2')}\n{then}"
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
@pytest.mark.parametrize("word", WORDS)
def test_words_between_cells(box: belljar.Sandbox, word: str) -> None:
    code = f"""
import threading
def speak():
{textwrap.indent(PREAMBLE, "    ")}
    begin.wait()
    {WORDS[word].replace("NUMBER", "2")}
begin = threading.Event()
threading.Thread(target=speak, daemon=True).start()
threading.Timer(0.05, begin.set).start()
"""
    with box.session() as session:
        assert session.run(code).ok
        with contextlib.suppress(SessionEnded):
            for _ in range(3):
                outcome = session.run("import time; time.sleep(0.1)", timeout=1.5)
                assert outcome.status in ("ok", "failed", "crashed", "timed_out"), outcome


@pytest.mark.usefixtures("unharmed")
@pytest.mark.parametrize("word", WORDS)
def test_words_while_it_is_opened(box: belljar.Sandbox, word: str) -> None:
    """A module of the caller's is imported by ours, after the first word and before the second."""
    code = f"{PREAMBLE}\n{WORDS[word].replace('NUMBER', '1')}\nos._exit(0)"
    with contextlib.suppress(InvalidExecution), box.session(tools=[add], files={"fcntl.py": code}) as session:
        assert word == "ready_again", "only what is due opens a session"
        with contextlib.suppress(SessionEnded):
            outcome = session.run("1")
            assert outcome.error is not None
            assert outcome.error.type == "SessionEnded"


@pytest.mark.usefixtures("unharmed")
def test_a_program_has_no_word_left(box: belljar.Sandbox) -> None:
    """The socket of a program that does not stay is closed before anything of its caller's runs."""
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
