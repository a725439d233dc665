"""The container back end under gVisor: another kernel, frames for descriptors, plainer walls, the same answers."""

from __future__ import annotations

import dataclasses
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from container_engines import Engine, container_settings, needs

import belljar
from belljar.contract.errors import NotOffered, SandboxFault, TooLarge
from belljar.settings import NetworkSettings, Settings

PROGRAMS = Path(__file__).resolve().parents[1] / "conformance" / "programs"
THEMES = ("exit", "print", "source", "traceback")
#: What these print depends on the moment.
VARYING = ("exit/daemon_thread_prints_for_ever",)


@pytest.fixture(scope="module")
def vbox(settings: Settings, docker: Engine, guest_image: str) -> Iterator[belljar.Sandbox]:
    needs("runsc")
    offering = dataclasses.replace(settings, network=NetworkSettings(offered=True))
    with belljar.Sandbox(settings=container_settings(offering, docker, guest_image, runtime="runsc")) as box:
        yield box


def test_a_network_is_refused(vbox: belljar.Sandbox) -> None:
    with pytest.raises(NotOffered, match="network is not offered under runsc"):
        vbox.run("1", network=True)


def test_the_kernel_is_gvisors(vbox: belljar.Sandbox) -> None:
    assert vbox.run("import platform; print(platform.release())").stdout == "4.4.0\n"


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


def test_artifacts_and_their_bounds(vbox: belljar.Sandbox) -> None:
    make = "import os\nos.makedirs('a/b')\nopen('a/b/c.txt', 'w').write('c')\nos.symlink('/etc/passwd', 'a/link.txt')"
    outcome = vbox.run(make, artifacts=["**/*.txt"])
    assert [(file.path, file.content) for file in outcome.artifacts] == [("a/b/c.txt", b"c")]
    with pytest.raises(TooLarge):
        vbox.run("for n in range(1200): open(f'{n}.txt', 'w')", artifacts=["*.txt"])


def test_output_is_cut_and_floods_end(vbox: belljar.Sandbox) -> None:
    outcome = vbox.run("print('x' * 3_000_000)")
    assert (outcome.status, len(outcome.stdout), outcome.stdout_cut) == ("ok", 1 << 20, True)


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


def test_many_at_once(vbox: belljar.Sandbox) -> None:
    outcomes = list(vbox.run_many([f"print({n})" for n in range(24)], max_in_flight=4))
    assert [outcome.stdout for outcome in outcomes] == [f"{n}\n" for n in range(24)]


def test_a_killed_sandbox_is_replaced(settings: Settings, docker: Engine, plain_image: str) -> None:
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


def _conformance() -> list[Any]:
    names = sorted(path.relative_to(PROGRAMS).with_suffix("").as_posix() for path in PROGRAMS.rglob("*.py"))
    return [name for name in names if name.split("/")[0] in THEMES and name not in VARYING][::3]


@pytest.mark.parametrize("name", _conformance())
def test_a_program_behaves_as_in_the_local_jail(vbox: belljar.Sandbox, box: belljar.Sandbox, name: str) -> None:
    code = (PROGRAMS / f"{name}.py").read_text()
    here, there = box.run(code, timeout=30), vbox.run(code, timeout=30)
    assert (there.status, there.exit_code, there.signal) == (here.status, here.exit_code, here.signal), there.stderr
    assert there.stdout == here.stdout
