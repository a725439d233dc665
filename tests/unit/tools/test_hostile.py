"""Programs that write to the tool socket directly. Each harms only itself."""

from __future__ import annotations

import contextlib
import textwrap
from pathlib import Path
from typing import Any

import pytest

import belljar

#: How a program finds its socket and writes to it.
PREAMBLE = textwrap.dedent(
    """
    import array, json, os, socket, struct, sys, tools
    number = next(each for each in map(int, os.listdir('/proc/self/fd')) if each >= 200)
    wire = socket.socket(fileno=os.dup(number))
    def packet(call, flag, text):
        return struct.pack('>IB', call, flag) + (text if isinstance(text, bytes) else json.dumps(text).encode())
    def ask(text, call=7, flag=0):
        wire.send(packet(call, flag, text))
        return wire.recv(200000)[5:].decode()
    def give(*descriptors, flag=2):
        passed = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', descriptors))]
        wire.sendmsg([packet(0, flag, b'')], passed)
    """
)

called: list[Any] = []


def note(value: Any = None) -> str:
    called.append(value)
    return "noted"


def secret() -> str:
    called.append("secret")
    return "secret"


def run(box: belljar.Sandbox, code: str, **options: Any) -> belljar.Outcome:
    called.clear()
    return box.run(PREAMBLE + textwrap.dedent(code), tools=[note], **options)


_SETTLED_LOOKS = 50


def settled_descriptors(box: belljar.Sandbox, host: Any) -> int:
    """The number of open descriptors once the number of guests is stable."""
    still_works(box)
    seen = [-1]

    def has_settled() -> bool:
        seen.append(descriptors())
        return len(seen) > _SETTLED_LOOKS and len(set(seen[-_SETTLED_LOOKS:])) == 1

    host.wait_until(has_settled, "no guest comes or goes")
    return seen[-1]


def descriptors() -> int:
    """Descriptors other than those of cgroups, some of which are kept for reuse."""
    count = 0
    for each in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            count += not each.readlink().is_relative_to("/sys/fs/cgroup")
    return count


def still_works(box: belljar.Sandbox) -> None:
    outcome = box.run("import tools\nprint(tools.note(1))", tools=[note])
    assert outcome.stdout == "noted\n", outcome.stderr


@pytest.mark.parametrize(
    ("call", "message"),
    [
        pytest.param("{'tool': 'secret', 'arguments': {}}", "is not a tool of this program", id="not_given"),
        pytest.param("{'tool': 'note@1', 'arguments': {}}", "is not a tool of this program", id="a_key_of_the_host"),
        pytest.param("{'tool': '*', 'arguments': {}}", "is not a tool of this program", id="all_of_them"),
        pytest.param("{'tool': 'note', 'arguments': {'wrong': 1}}", "unknown argument 'wrong'", id="wrong_name"),
        pytest.param("{'tool': 'note' * 10000, 'arguments': {}}", "is not a tool of this program", id="a_long_name"),
    ],
)
def test_a_forged_call_is_answered_with_an_error(tool_box: belljar.Sandbox, call: str, message: str) -> None:
    outcome = run(tool_box, f"print(ask({call})[:300]); print(tools.note(2))")
    assert outcome.status == "ok", outcome.stderr
    answer, after = outcome.stdout.splitlines()
    assert message in answer
    assert after == "noted"
    assert "secret" not in called


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param("wire.send(b'abc')", id="too_short"),
        pytest.param("wire.send(packet(1, 9, b'{}'))", id="unknown_flag"),
        pytest.param("wire.send(packet(1, 1, b'{}'))", id="a_small_piece"),
        pytest.param("wire.send(packet(1, 1, b'x' * 61440)); wire.send(packet(2, 1, b'x' * 61440))", id="two_at_once"),
        pytest.param("[wire.send(packet(1, 1, b'x' * 61440)) for _ in range(40)]", id="endless_pieces"),
        pytest.param("wire.send(b'x' * 150000)", id="a_packet_that_is_too_large"),
        pytest.param("wire.send(packet(0, 2, b''))", id="a_connection_without_a_socket"),
        pytest.param("give(0)", id="a_connection_that_is_a_file"),
        pytest.param("give(os.open('/work', os.O_PATH))", id="a_connection_that_is_a_directory"),
        pytest.param("give(0, flag=0)", id="a_call_with_a_descriptor"),
        pytest.param("give(0, 1, 2)", id="more_descriptors_than_one"),
        pytest.param("give(wire.fileno())", id="the_socket_itself"),
        pytest.param("give(socket.socket(socket.AF_INET, socket.SOCK_DGRAM).fileno())", id="another_kind_of_socket"),
        pytest.param("wire.send(packet(1, 0, {'tool': 7, 'arguments': {}}))", id="name_is_a_number"),
        pytest.param("wire.send(packet(1, 0, {'tool': 'note', 'arguments': []}))", id="arguments_are_a_list"),
        pytest.param("wire.send(packet(1, 0, {'tool': 'note'}))", id="no_arguments"),
        pytest.param("wire.send(packet(1, 0, [1, 2]))", id="a_list"),
        pytest.param("wire.send(packet(1, 0, b'{'))", id="no_json"),
        pytest.param("wire.send(packet(1, 0, b''))", id="empty"),
        pytest.param("wire.send(packet(1, 0, b'\\xff' * 100))", id="no_text"),
        pytest.param("wire.send(packet(1, 0, b'[' * 50000))", id="a_nesting_bomb"),
        pytest.param(
            """wire.send(packet(1, 0, b'{"tool":"note","arguments":{"value":' + b'9' * 50000 + b'}}'))""",
            id="a_huge_number",
        ),
        pytest.param("wire.shutdown(socket.SHUT_RDWR)", id="hanging_up"),
    ],
)
def test_a_broken_packet_harms_only_its_sender(tool_box: belljar.Sandbox, sent: str, host: Any) -> None:
    before = settled_descriptors(tool_box, host)
    code = f"""
        try:
            {sent}
        except OSError as error:
            print(error)
        try:
            print(tools.note(2))
        except tools.ToolError as error:
            print(error)
    """
    shares_its_socket = sent == "give(wire.fileno())"
    outcome = run(tool_box, code, timeout=2 if shares_its_socket else 60)
    if shares_its_socket:  # host and program now read the same socket, so the program may lose its answer
        assert outcome.status in ("ok", "timed_out")
    else:
        assert outcome.status == "ok", outcome.stderr
        assert outcome.stdout.splitlines()[-1] == "noted" or "the host cannot be reached" in outcome.stdout
    still_works(tool_box)
    host.wait_until(lambda: descriptors() <= before, "what the program sent is closed")


def test_a_flood_of_calls_does_not_block_the_host(tool_box: belljar.Sandbox) -> None:
    """The program reads no answers; other programs are still served."""
    code = """
        import threading
        def flood():
            while True:
                wire.send(packet(1, 0, {'tool': 'note', 'arguments': {'value': 'x' * 50000}}))
        for _ in range(4): threading.Thread(target=flood, daemon=True).start()
        threading.Event().wait()
    """
    limits = {"wall_seconds": 100, "cpu_seconds": 100}
    flood = tool_box.stream(PREAMBLE + textwrap.dedent(code), tools=[note], limits=limits)
    next(flood)
    for _ in range(5):
        still_works(tool_box)
    assert tool_box.facts()["running"] == 1, "others were not served during the flood"
    flood.close()
    still_works(tool_box)


def test_a_flood_of_connections_is_limited(tool_box: belljar.Sandbox, host: Any) -> None:
    before = settled_descriptors(tool_box, host)
    code = """
        kept = []
        for _ in range(400):
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            give(theirs.fileno())
            theirs.close(); kept.append(ours)
        print(tools.note(3), flush=True)
        sys.stdin.read()
    """
    outcome = run(tool_box, code)
    assert outcome.stdout == "noted\n", outcome.stderr
    host.wait_until(lambda: descriptors() <= before + 2, "the connections are closed")


def test_a_socket_whose_flags_a_program_changes_does_not_stop_the_host(tool_box: belljar.Sandbox) -> None:
    code = """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        give(theirs.fileno())
        theirs.setblocking(True)
        for number in range(3000):
            try:
                ours.send(packet(number, 0, {'tool': 'note', 'arguments': {'value': 'x' * 9000}}), socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
        print(tools.note(3))
    """
    outcome = run(tool_box, code)
    assert outcome.status in ("ok", "timed_out"), outcome.stderr
    still_works(tool_box)


def test_unread_answers_do_not_fill_the_hosts_memory(bounded_box: Any) -> None:
    """The host stops reading calls at the limit of calls in flight."""
    box = bounded_box(in_flight=4)
    answered = []

    def big() -> str:
        answered.append(1)
        return "x" * 3_000_000

    code = PREAMBLE + textwrap.dedent(
        """
        for _ in range(100):
            try:
                wire.send(packet(1, 0, {'tool': 'big', 'arguments': {}}), socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
        import threading; threading.Event().wait(1.5)
        """
    )
    assert box.run(code, tools=[big]).status == "ok"
    assert len(answered) <= 5
