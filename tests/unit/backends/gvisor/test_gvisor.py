"""The container back end under gVisor: another kernel, relayed descriptors and simpler jails, but the same results."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from container_engines import Engine, container_settings, needs

import belljar
from belljar.contract.errors import (
    CannotBranch,
    FileNotInSession,
    InvalidExecution,
    NotOffered,
    SandboxFault,
    SessionEnded,
    UnsafePath,
)
from belljar.settings import NetworkSettings, Settings


@pytest.fixture(scope="module")
def vbox(settings: Settings, docker: Engine, guest_image: str) -> Iterator[belljar.Sandbox]:
    needs("runsc")
    offering = dataclasses.replace(settings, network=NetworkSettings(offered=True))
    with belljar.Sandbox(settings=container_settings(offering, docker, guest_image, runtime="runsc")) as box:
        yield box


def test_network_access_is_refused(vbox: belljar.Sandbox) -> None:
    with pytest.raises(NotOffered, match="network is not offered under runsc"):
        vbox.run("1", network=True)


def test_the_kernel_is_gvisors(vbox: belljar.Sandbox) -> None:
    assert vbox.run("import platform; print(platform.release())").stdout == "4.4.0\n"


def test_the_doctor_reports_which_layers_are_gvisors(vbox: belljar.Sandbox, docker: Engine, settings: Settings) -> None:
    environ = {
        "PATH": "/usr/bin:/bin",
        "BELLJAR_BACKEND": "container",
        "BELLJAR_CONTAINER_RUNTIME": "runsc",
        "BELLJAR_CONTAINER_SOCKET": docker.socket,
        "BELLJAR_CONTAINER_IMAGE": "belljar-test-guest:1",
        "BELLJAR_STATE_DIR": str(settings.state_dir),
        "BELLJAR_RUNTIME_DIR": str(settings.runtime_dir / "doctor"),
    }
    command = [sys.executable, "-m", "belljar", "doctor", "--json"]
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    tables = json.loads(ended.stdout)
    walls = {row["name"]: (row["state"], row["meaning"].split(":")[0]) for row in tables["walls"]}
    assert walls["kernel"] == ("ok", "outer wall")
    assert walls["seccomp"] == ("ok", "inner wall")
    assert walls["landlock"][0] == "note"
    assert [row["state"] for row in tables["program"]] == ["ok"]


@pytest.mark.parametrize(
    ("code", "given", "expected"),
    [
        pytest.param("print('hello')", {}, ("ok", 0, None, "hello\n"), id="hello"),
        pytest.param("1/0", {}, ("failed", 1, None, ""), id="exception"),
        pytest.param("raise SystemExit(7)", {}, ("failed", 7, None, ""), id="exit_code"),
        pytest.param("import os; os.abort()", {}, ("crashed", None, "SIGABRT", ""), id="abort"),
        pytest.param("import ctypes; ctypes.string_at(0)", {}, ("crashed", None, "SIGSEGV", ""), id="segfault"),
        pytest.param("while True: pass", {"timeout": 1}, ("timed_out", None, "SIGKILL", ""), id="endless"),
        pytest.param("import time; time.sleep(60)", {"timeout": 1}, ("timed_out", None, "SIGKILL", ""), id="sleep"),
        pytest.param("bytearray(10**10)", {}, ("failed", 1, None, ""), id="memory_error"),
        pytest.param("print(input())", {"stdin": "there\n"}, ("ok", 0, None, "there\n"), id="stdin"),
        pytest.param(
            "import sys; print(len(sys.stdin.read()))",
            {"stdin": "x" * 500_000},
            ("ok", 0, None, "500000\n"),
            id="much_stdin",
        ),
        pytest.param("import sys; print(sys.argv)", {"args": ["a"]}, ("ok", 0, None, "['main.py', 'a']\n"), id="args"),
        pytest.param("import os; print(os.environ['A'])", {"env": {"A": "b"}}, ("ok", 0, None, "b\n"), id="env"),
        pytest.param("import m; print(m.x)", {"files": {"m.py": "x = 3"}}, ("ok", 0, None, "3\n"), id="files"),
        pytest.param(
            "print(len(open('big').read()))",
            {"files": {"big": "y" * 300_000}},
            ("ok", 0, None, "300000\n"),
            id="large_file",
        ),
        pytest.param(
            "import os, time\nif not os.fork():\n    time.sleep(60)\nprint(1)", {}, ("ok", 0, None, "1\n"), id="daemon"
        ),
        pytest.param(
            "import subprocess; print(subprocess.run(['echo', 'x'], capture_output=True, text=True).stdout)",
            {},
            ("ok", 0, None, "x\n\n"),
            id="subprocess",
        ),
        pytest.param(
            "from socket import *; s = create_server(('127.0.0.1', 0)); create_connection(s.getsockname()); print(1)",
            {},
            ("ok", 0, None, "1\n"),
            id="loopback",
        ),
        pytest.param(
            "import threading; t = threading.Thread(target=print, args=(1,)); t.start(); t.join()",
            {},
            ("ok", 0, None, "1\n"),
            id="thread",
        ),
        pytest.param(
            "import os; print(os.getuid() > 1000, os.getgroups())", {}, ("ok", 0, None, "True []\n"), id="own_uid"
        ),
        pytest.param(
            "import os; print(sorted(os.listdir('/work')), os.listdir('/tmp'))",
            {},
            ("ok", 0, None, "['main.py'] []\n"),
            id="fresh_directories",
        ),
        pytest.param(
            "import os; print(os.path.exists('/run/belljar'), os.path.exists('/tmp/.belljar'))",
            {},
            ("ok", 0, None, "False False\n"),
            id="nothing_of_ours",
        ),
    ],
)
def test_programs(vbox: belljar.Sandbox, code: str, given: dict[str, Any], expected: tuple[Any, ...]) -> None:
    outcome = vbox.run(code, **given)
    assert (outcome.status, outcome.exit_code, outcome.signal, outcome.stdout) == expected, outcome.stderr


@pytest.mark.parametrize(
    ("code", "refusal"),
    [
        ("import os; os.mkdir('/usr/x')", "OSError"),
        ("import os; os.setuid(0)", "PermissionError"),
        ("import os; os.chroot('.')", "PermissionError"),
        (
            "import ctypes, os; assert ctypes.CDLL(None).mount(b'none', b'/work', b'tmpfs', 0, None) == 0",
            "AssertionError",
        ),
        ("import socket; socket.create_connection(('192.0.2.1', 80), timeout=1)", "OSError"),
        ("import os; os.kill(1, 9); os.kill(3, 9)", "Error"),
    ],
)
def test_walls_inside(vbox: belljar.Sandbox, code: str, refusal: str) -> None:
    outcome = vbox.run(code)
    assert outcome.status == "failed"
    assert refusal in outcome.stderr


def test_fork_bombs_are_stopped_by_the_limit(vbox: belljar.Sandbox) -> None:
    bomb = "import os\nwhile True:\n    os.fork()"
    assert vbox.run(bomb, timeout=10, limits={"processes": 16}).status in ("failed", "timed_out")
    assert vbox.run("print(1)").ok


def test_artifacts_and_their_limits(vbox: belljar.Sandbox) -> None:
    make = "import os\nos.makedirs('a/b')\nopen('a/b/c.txt', 'w').write('c')\nos.symlink('/etc/passwd', 'a/link.txt')"
    outcome = vbox.run(make, artifacts=["**/*.txt"])
    assert [(file.path, file.content) for file in outcome.artifacts] == [("a/b/c.txt", b"c")]
    outcome = vbox.run("for n in range(1200): open(f'{n}.txt', 'w')", artifacts=["*.txt"])
    assert outcome.stderr.startswith("[artifacts: 1200 files match, at most 1000 can be returned")
    assert (outcome.status, len(outcome.artifacts)) == ("ok", 1000)
    slow_patterns = ["wanted", *("d/*" + "[a-b]" * 48 + f"b*{n}" for n in range(7))]
    code = "import os\nopen('wanted', 'w')\nos.mkdir('d')\nfor i in range(2000): open(f'd/{i:a>254}', 'w')"
    outcome = vbox.run(code, artifacts=slow_patterns)
    assert outcome.stderr.startswith("[artifacts: these patterns")


def test_output_is_truncated_and_floods_are_ended(vbox: belljar.Sandbox) -> None:
    outcome = vbox.run("print('x' * 3_000_000)")
    assert (outcome.status, len(outcome.stdout), outcome.stdout_cut) == ("ok", 1 << 20, True)
    outcome = vbox.run("while True: print('x' * 65_536)", timeout=60)
    assert (outcome.status, len(outcome.stdout), outcome.stdout_cut) == ("output_limit", 1 << 20, True)
    outcome = vbox.run("while True: print('x' * 65_536)", timeout=60, coverage=True)
    assert outcome.status == "output_limit"


def test_output_of_a_program_that_exits_at_once_is_complete(vbox: belljar.Sandbox) -> None:
    """A pipe holds less, so most of the output arrives after the exit."""
    outcome = vbox.run("import os, sys\nos.write(2, b'e' * 300_000)\nos.write(1, b'o' * 300_000)\nos._exit(3)")
    assert (outcome.exit_code, len(outcome.stdout), len(outcome.stderr)) == (3, 300_000, 300_000)


def test_unread_input_does_not_block_the_program(vbox: belljar.Sandbox) -> None:
    assert vbox.run("import sys; print(sys.stdin.read(3))", stdin="abc" * 1_000_000).stdout == "abc\n"
    assert vbox.run("import os; os.close(0); print(1)", stdin="abc" * 1_000_000).stdout == "1\n"


def test_artifacts_with_invalid_names_are_left_out(vbox: belljar.Sandbox) -> None:
    outcome = vbox.run("for name in ('a\\\\b', 'plain'): open(name, 'w').close()", artifacts=["*"])
    assert [file.path for file in outcome.artifacts] == ["main.py", "plain"]


def test_output_streams_while_the_program_runs(vbox: belljar.Sandbox) -> None:
    code = "import time\nfor n in range(3):\n    print(n, flush=True)\n    time.sleep(0.3)"
    arrived = [(time.monotonic(), event.text) for event in vbox.stream(code) if isinstance(event, belljar.Output)]
    assert "".join(text for _, text in arrived) == "0\n1\n2\n"
    assert arrived[-1][0] - arrived[0][0] > 0.3


def test_cancelling_ends_the_program(vbox: belljar.Sandbox) -> None:
    events = vbox.stream("print('here', flush=True)\nimport time; time.sleep(60)", timeout=90)
    while not isinstance(next(events), belljar.Output):
        pass
    events.close()
    assert vbox.run("print(1)").ok
    assert vbox.facts()["sandbox"]["guests"] == 0


def test_memory_counts_for_all_processes_together(vbox: belljar.Sandbox) -> None:
    """There is no cgroup; each process alone would be within the limit."""
    hold = "x = bytearray(80 << 20)\n    for i in range(0, len(x), 4096): x[i] = 1\n    time.sleep(60)"
    greedy = f"import os, time\nfor _ in range(8):\n  if not os.fork():\n    {hold}\ntime.sleep(60)"
    assert vbox.run(greedy, memory_mb=128, timeout=50).status == "out_of_memory"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param({"code": "echo $((6 * 7)); exit 3", "language": "sh"}, ("failed", "42\n"), id="shell"),
        pytest.param({"code": "echo (", "language": "sh"}, ("compile_failed", ""), id="syntax_error"),
        pytest.param({"code": "print(1)", "restrict": {}}, ("ok", "1\n"), id="restricted"),
        pytest.param({"code": "import os", "restrict": {}}, ("denied", ""), id="denied"),
    ],
)
def test_languages_and_restricted_python(vbox: belljar.Sandbox, given: Any, expected: tuple[str, str]) -> None:
    outcome = vbox.run(**given)
    assert (outcome.status, outcome.stdout) == expected, outcome.stderr


def test_tools_are_called_from_several_threads(vbox: belljar.Sandbox) -> None:
    def double(number: int) -> int:
        return 2 * number

    code = """
import threading, tools
answers = []
def ask(n):
    answers.append(tools.double(number=n))
threads = [threading.Thread(target=ask, args=(n,)) for n in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(sorted(answers), tools.double(number=100_000))
"""
    outcome = vbox.run(code, tools=[double])
    assert outcome.stdout == f"{[2 * n for n in range(8)]} 200000\n", outcome.stderr
    assert len(outcome.tool_calls) == 9


def test_coverage_is_measured(vbox: belljar.Sandbox) -> None:
    report = vbox.run("x = 1\nif x > 2:\n    print(3)\n", coverage=True).coverage
    assert report is not None
    assert [(file.executed, file.missing) for file in report.files] == [((1, 2), (3,))]


def test_sessions(vbox: belljar.Sandbox) -> None:
    with vbox.session(files={"given.txt": "g"}) as session:
        assert session.run("x = open('given.txt').read() * 3").ok
        outcome = session.run("print(x); 6 * 7")
        assert (outcome.stdout, [each.content for each in outcome.displays]) == ("ggg\n", [b"42"])
        failed = session.run("1 / 0")
        assert (failed.status, failed.error and failed.error.type) == ("failed", "ZeroDivisionError")
        assert session.run("import time; time.sleep(60)", timeout=1).status == "timed_out"
        assert session.run("print(x, end='')").stdout == "ggg", "the session has survived the interrupt"
        much = session.run("print('y' * 700_000, flush=True); open('made.txt', 'w').write('m')", artifacts=["m*"])
        assert (len(much.stdout), [file.content for file in much.artifacts]) == (700_001, [b"m"])
        with pytest.raises(CannotBranch):
            session.branch()


def test_files_of_sessions(vbox: belljar.Sandbox) -> None:
    with vbox.session() as session:
        session.write_file("deep/er/a.txt", "one")
        session.write_file("deep/er/a.txt", "other")
        assert session.run("open('deep/er/a.txt', 'a').write('!')").ok, "the file belongs to the program"
        assert session.read_file("deep/er/a.txt") == b"other!"
        assert [file.path for file in session.files()] == ["deep/er/a.txt"]
        assert session.run("import os; os.symlink('/etc', 'link'); os.mkfifo('pipe')").ok
        for path in ("link/passwd", "pipe", "missing"):
            with pytest.raises(FileNotInSession):
                session.read_file(path)
        with pytest.raises(UnsafePath):
            session.write_file("link/x", "")
        session.delete_file("deep/er/a.txt")
        assert not session.files()


def test_a_session_reports_how_it_ended(vbox: belljar.Sandbox) -> None:
    with vbox.session() as session:
        ended = session.run("print('last', flush=True)\nimport os; os._exit(3)")
        assert (ended.stdout, ended.exit_code, ended.error and ended.error.type) == ("last\n", 3, "SessionEnded")
        with pytest.raises(SessionEnded):
            session.run("1")
    with vbox.session() as session, pytest.raises(NotOffered), vbox.session(language="sh") as other:
        assert session.run("1").ok
        other.run("echo")
    assert vbox.facts()["sandbox"]["guests"] == 0


def test_the_end_of_a_session_leaves_others_in_its_container_alive(vbox: belljar.Sandbox) -> None:
    with vbox.session() as kept:
        assert kept.run("x = 1").ok
        with vbox.session() as closed:
            assert closed.run("y = 2").ok
        assert kept.run("print(x)").stdout == "1\n"
        with vbox.session() as exiting:
            assert exiting.run("import os; os._exit(3)").exit_code == 3
        assert kept.run("print(x)").stdout == "1\n"
    assert vbox.facts()["sandbox"]["guests"] == 0


def test_sessions_call_tools(vbox: belljar.Sandbox) -> None:
    def shout(text: str) -> str:
        return text.upper()

    with vbox.session(tools=[shout]) as session:
        assert session.run("import tools; print(tools.shout(text='a'))").stdout == "A\n"
        assert session.run("print(tools.shout(text='b'))").stdout == "B\n"


def test_a_forged_message_reveals_no_file_of_the_container(vbox: belljar.Sandbox) -> None:
    """A module of the caller replaces one that Belljar's code imports, and claims that /etc is the work directory."""
    code = """
import _socket, os, time
own = [os.open(path, os.O_PATH | os.O_DIRECTORY) for path in ("/etc", "/tmp", "/dev/shm")]
rights = b"".join(each.to_bytes(4, "little") for each in own)
peer = _socket.socket(fileno=os.dup(3))
for word in (b"started", b"here", b"ready"):
    peer.sendmsg([bytes(4) + word], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)])
    time.sleep(5)  # time for the host to believe it
time.sleep(1000)
"""

    def shout(text: str) -> str:
        return text.upper()

    files = {f"{name}.py": code for name in ("json", "struct", "fcntl")}
    with contextlib.suppress(InvalidExecution), vbox.session(tools=[shout], files=files) as session:
        for path in ("shadow", "gshadow", "passwd"):
            with pytest.raises(FileNotInSession):
                session.read_file(path)
        assert {each.path for each in session.files()} <= set(files)
    with vbox.session() as session:
        session.run("open('closed', 'w').close(); import os; os.chmod('closed', 0)")
        with pytest.raises(FileNotInSession):  # the program may not read it either
            session.read_file("closed")


def test_many_programs_at_once(vbox: belljar.Sandbox) -> None:
    outcomes = list(vbox.run_many([f"print({n})" for n in range(24)], max_in_flight=4))
    assert [outcome.stdout for outcome in outcomes] == [f"{n}\n" for n in range(24)]


def test_a_killed_container_is_replaced(settings: Settings, docker: Engine, plain_image: str) -> None:
    needs("runsc")
    with belljar.Sandbox(settings=container_settings(settings, docker, plain_image, runtime="runsc")) as box:
        assert box.run("print(1)").ok
        failures: list[BaseException] = []
        started = threading.Event()

        def long_run() -> None:
            try:
                for _ in box.stream("print('here', flush=True)\nimport time; time.sleep(60)", timeout=90):
                    started.set()
            except SandboxFault as error:
                failures.append(error)

        running = threading.Thread(target=long_run)
        running.start()
        assert started.wait(60)
        newest = max(docker.containers(), key=lambda each: each["Created"])
        docker.client.api.kill(newest["Id"], signal.SIGKILL)
        running.join(60)
        assert failures
        assert box.run("print(2)").stdout == "2\n"
    assert not [each for each in docker.containers() if each["Id"] == newest["Id"]]


def test_output_of_a_session_that_exits_at_once_is_complete(vbox: belljar.Sandbox) -> None:
    with vbox.session() as session:
        ended = session.run("import os\nos.write(2, b'e' * 300_000)\nos.write(1, b'o' * 300_000)\nos._exit(3)")
        assert (ended.exit_code, len(ended.stdout), len(ended.stderr)) == (3, 300_000, 300_000)
