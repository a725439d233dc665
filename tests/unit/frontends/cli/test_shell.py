"""`belljar shell` at a real terminal and in a pipe, locally and on a server."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from belljar.client import Client, Unreachable
from belljar.frontends.cli.shell.cell_reader import Cell
from belljar.settings import Settings

DEADLINE_SECONDS = 60.0
COMMAND = [sys.executable, "-m", "belljar"]

Environ = dict[str, str]
Piped = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def environ(settings: Settings, sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Environ:
    """The settings of this test session as environment variables."""
    return {
        **{name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
        "PYTHONPATH": str(sources),
        "TERM": "xterm",
        "LANG": "C.UTF-8",
        "BELLJAR_STATE_DIR": str(settings.state_dir),
        "BELLJAR_RUNTIME_DIR": str(tmp_path_factory.mktemp("shell-run")),
        "BELLJAR_JAIL_UID_BASE": str(settings.jail.uid_base),
        "BELLJAR_JAIL_CGROUP_PARENT": settings.jail.cgroup_parent,
        "BELLJAR_SERVER_KEYS_FILE": str(tmp_path_factory.mktemp("shell-keys") / "keys.json"),
    }


@pytest.fixture
def piped(environ: Environ, tmp_path: Path) -> Piped:
    """Run `belljar shell` with lines on standard input."""

    def run(lines: str, *options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*COMMAND, "shell", *options],
            input=lines,
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=environ,
            timeout=DEADLINE_SECONDS,
            check=False,
        )

    return run


@pytest.fixture
def at_terminal(environ: Environ, tmp_path: Path) -> Iterator[Callable[..., Terminal]]:
    """Start `belljar shell` at a terminal."""
    with contextlib.ExitStack() as opened:
        yield lambda *options: opened.enter_context(Terminal([*COMMAND, "shell", *options], environ, tmp_path))


@pytest.fixture(scope="module")
def url(environ: Environ) -> Iterator[str]:
    """The URL of a running server."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    at = f"http://127.0.0.1:{port}"
    process = subprocess.Popen(
        [*COMMAND, "serve", "--port", str(port)], env={**environ, "BELLJAR_SERVER_LOG_FORMAT": "json"}, stderr=-3
    )
    try:
        deadline = time.monotonic() + DEADLINE_SECONDS
        with Client(at) as client:
            while True:
                with contextlib.suppress(Unreachable):
                    if client.health().ok:
                        break
                assert process.poll() is None
                assert time.monotonic() < deadline
        yield at
    finally:
        process.terminate()
        process.wait(DEADLINE_SECONDS)


class Terminal:
    """Types into a command at a terminal and waits for expected output."""

    def __init__(self, command: list[str], environ: Environ, directory: Path) -> None:
        self._master, slave = pty.openpty()
        self._process = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=directory,
            env=environ,
            preexec_fn=_own_terminal,
        )
        os.close(slave)
        self._seen = ""
        self.everything = ""

    def __enter__(self) -> Terminal:
        self.expect(r"Ctrl-D leaves")
        self.expect(r"In \[1\]: ")
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        os.close(self._master)

    def type(self, text: str) -> None:
        """Press keys; \\n is Enter, \\x03 Ctrl-C, \\x04 Ctrl-D."""
        os.write(self._master, text.encode())

    def expect(self, pattern: str) -> str:
        """Read until `pattern` appears; return the output up to its end."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not (found := re.search(pattern, _plain(self._seen), re.DOTALL)):
            left = deadline - time.monotonic()
            assert left > 0, f"{pattern!r} did not appear in:\n{self.everything}"
            if select.select([self._master], [], [], left)[0]:
                try:
                    chunk = os.read(self._master, 65536).decode(errors="replace")
                except OSError:
                    chunk = ""
                assert chunk, f"the shell ended before {pattern!r} in:\n{self.everything}"
                self._seen += chunk
                self.everything += chunk
        plain = _plain(self._seen)
        self._seen = plain[found.end() :]
        return plain[: found.end()]

    def press_until(self, key: str, pattern: str) -> None:
        """Press a key repeatedly until `pattern` appears.

        CPython handles a signal that arrives just before readline waits for a key only after the next key.
        """
        for _ in range(5):
            self.type(key)
            deadline = time.monotonic() + 5
            while time.monotonic() < deadline and not re.search(pattern, _plain(self._seen), re.DOTALL):
                if select.select([self._master], [], [], 0.5)[0]:
                    chunk = os.read(self._master, 65536).decode(errors="replace")
                    self._seen += chunk
                    self.everything += chunk
            if re.search(pattern, _plain(self._seen), re.DOTALL):
                break
        self.expect(pattern)

    def cell(self, code: str, expected: str) -> None:
        """Type a line, then wait for the expected output and the next prompt."""
        self.type(code + "\n")
        self.expect(expected)
        self.expect(r"In \[\d+\]: ")

    def leave(self) -> int:
        """Press Ctrl-D and return the exit code."""
        self.type("\x04")
        return self._process.wait(DEADLINE_SECONDS)


def _own_terminal() -> None:
    """Start a session with this controlling terminal; without one, Ctrl-C sends no signal."""
    import fcntl
    import termios

    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


# ---- at a terminal


def test_conversation(at_terminal: Callable[..., Terminal], tmp_path: Path) -> None:
    shell = at_terminal("--history", "history")
    shell.cell("x = 6", r"x = 6\r\n")
    shell.cell("x * 7", r"Out\[2\]: 42")
    shell.type("for n in range(2):\n")
    shell.expect(r"\.\.\.: ")
    shell.type("    print('n is', n)\n\n")
    shell.expect(r"n is 0\r\nn is 1\r\n")
    shell.expect(r"In \[4\]: ")
    shell.cell("1/0", r"ZeroDivisionError: division by zero")
    shell.cell("x", r"Out\[5\]: 6")
    assert shell.leave() == 0
    history = tmp_path / "history"
    assert "x * 7" in history.read_text()
    assert history.stat().st_mode & 0o077 == 0, "other users can read it"
    again = at_terminal("--history", "history")
    again.type("\x1b[A")  # up: the last line of the previous shell
    again.expect("x")
    again.press_until("\x03", r"In \[1\]: ")
    assert again.leave() == 0


def test_ctrl_c_interrupts_only_the_cell(at_terminal: Callable[..., Terminal]) -> None:
    shell = at_terminal("--history", "", "--timeout", "60")
    shell.cell("x = 5", r"\n")
    shell.type("import time; print('u' + 'p', flush=True); time.sleep(50)\n")
    shell.expect(r"\bup\r\n")
    shell.type("\x03")
    shell.expect("KeyboardInterrupt")
    shell.expect(r"In \[3\]: ")
    shell.cell("x", r"Out\[3\]: 5")
    shell.type("def half(")
    shell.expect(r"def half\(")
    shell.press_until("\x03", r"In \[4\]: ")  # at the prompt it only drops the line
    shell.cell("x + 1", r"Out\[4\]: 6")
    assert shell.leave() == 0


def test_branches_at_the_prompt(at_terminal: Callable[..., Terminal]) -> None:
    shell = at_terminal("--history", "")
    shell.cell("x = 1", r"\n")
    shell.cell(":branch", r"session 2 is a branch of 1")
    shell.cell(":switch 2", r"\n")
    shell.cell("x = 2", r"\n")
    shell.cell(":switch 1", r"\n")
    shell.cell("x", r"Out\[2\]: 1")
    shell.cell(":sessions", r"→1.*2 .* 1 ")
    shell.cell(":close 2", r"\n")
    shell.cell(":switch 2", r"unknown session 2")
    assert shell.leave() == 0


def test_leaves_nothing_behind(at_terminal: Callable[..., Terminal], host: Any) -> None:
    before = len(host.guest_processes())
    shell = at_terminal("--history", "")
    shell.cell("import subprocess; p = subprocess.Popen(['sleep', '1000'])", r"\n")
    assert len(host.guest_processes()) > before
    assert shell.leave() == 0
    host.wait_until(lambda: len(host.guest_processes()) <= before, "all processes are gone")


# ---- through a pipe


def test_pipe(piped: Piped) -> None:
    done = piped("x = 6\nx * 7\nfor n in range(2):\n  print(n)\n\nprint('end')\n")
    assert (done.returncode, done.stdout) == (0, "42\n0\n1\nend\n"), done.stderr
    failed = piped("1/0\nprint('on')\n")
    assert (failed.returncode, failed.stdout) == (1, "on\n")
    assert "ZeroDivisionError" in failed.stderr


def test_options(piped: Piped, tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("1,2")
    lines = "import os, time\nopen('in/d.csv').read() + os.environ['LEVEL']\ntime.sleep(50)\nx = b'x' * 10**9\n"
    done = piped(
        lines,
        "--file",
        "data.csv:in/d.csv",
        "--env",
        "LEVEL=3",
        "--timeout",
        "1",
        "--memory",
        "100",
        "--language",
        "py",
    )
    assert done.stdout == "'1,23'\n"
    assert "timed out after 1 s" in done.stderr
    assert "out of memory (100 MB)" in done.stderr
    assert "opened a new session" in done.stderr


def test_pictures_become_files(piped: Piped, tmp_path: Path) -> None:
    code = "import matplotlib.pyplot as plt\n_ = plt.plot([1, 2]); plt.show()\n"
    done = piped(code, "--displays", "pictures")
    (picture,) = (tmp_path / "pictures").iterdir()
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert str(picture.relative_to(tmp_path)) in done.stderr


def test_files(piped: Piped, tmp_path: Path) -> None:
    (tmp_path / "local.txt").write_text("hello")
    done = piped(
        ":upload local.txt in/there.txt\nopen('in/there.txt').read()\nn = open('out.txt', 'w').write('made')\n"
        ":files\n:download out.txt got.txt\n:download nope\n:upload nope\n"
    )
    assert "'hello'" in done.stdout
    assert re.search(r"5 +in/there.txt", done.stdout)
    assert (tmp_path / "got.txt").read_text() == "made"
    assert done.returncode == 1
    assert done.stderr.count("nope") == 2


def test_back_restores_earlier_states(piped: Piped) -> None:
    done = piped("x = 1\nx = 2\nx = 3\n:back 2\nx\nimport os; os._exit(1)\nx\n", "--branch")
    assert done.stdout == "1\n1\n", done.stderr
    assert "back to the state before that cell" in done.stderr


def test_back_without_states_gives_fitting_advice(piped: Piped) -> None:
    done = piped("x = 1\n:back\n:back\n", "--branch")
    assert "no state to go back to; no earlier one is kept" in done.stderr
    assert "start the shell with --branch" in piped("x = 1\n:back\n").stderr


def test_a_timeout_set_at_the_prompt_is_reported(piped: Piped) -> None:
    done = piped(":timeout 1\nimport time; time.sleep(50)\n:sessions\n")
    assert "timed out after 1 s; raise the limit with :timeout" in done.stderr
    assert done.stdout.split("\n")[0].strip() == "1 session"


def test_cells_can_be_undone_after_many_cells(piped: Piped) -> None:
    done = piped("x = 0\n" + "x += 1\n" * 20 + ":back 2\nx\n", "--branch")
    assert (done.stdout, done.returncode) == ("18\n", 0), done.stderr


def test_an_ended_session_is_replaced(piped: Piped) -> None:
    done = piped("x = 1\nimport os; os._exit(0)\n'x' in globals()\n")
    assert done.stdout == "False\n"
    assert "its process has exited" in done.stderr


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        pytest.param(["--url", "http://127.0.0.1:1"], 125, "no connection", id="no_server"),
        pytest.param(["--url", "ftp://x"], 2, "http", id="bad_url"),
        pytest.param(["--session", "x"], 2, "--url", id="session_without_server"),
        pytest.param(["--memory", "-1"], 2, "memory_mb", id="bad_limit"),
        pytest.param(["--language", "klingon"], 2, "klingon", id="unknown_language"),
        pytest.param(["--env", "x"], 2, "NAME=VALUE", id="bad_variable"),
    ],
)
def test_invalid_options_are_refused(piped: Piped, options: list[str], code: int, message: str) -> None:
    done = piped("1\n", *options)
    assert done.returncode == code
    assert message in done.stderr


# ---- on a server


def test_on_a_server(piped: Piped, url: str) -> None:
    done = piped("x = 6\nx * 7\n:branch\n:switch 2\nx += 1; x\n:quit\nnever\n", "--url", url)
    assert (done.returncode, done.stdout) == (0, "42\n7\n"), done.stderr
    with Client(url) as client:
        assert client.sessions() == [], "all are closed"


def test_joining_a_session_leaves_it_open(piped: Piped, url: str) -> None:
    with Client(url) as client, client.session() as session:
        session.run("x = 1")
        assert piped("x\nx = 2\n", "--url", url, "--session", session.id).stdout == "1\n"
        assert piped("x\nx = 3\n", "--url", url, "--session", session.id, "--branch").stdout == "2\n"
        assert session.run("x").displays[0].content == b"2", "a branch left it alone"
        assert len(client.sessions()) == 1


def test_a_signal_closes_the_sessions(url: str, environ: Environ, host: Any) -> None:
    command = [*COMMAND, "shell", "--url", url]
    with Client(url) as client, subprocess.Popen(command, env=environ, stdin=subprocess.PIPE) as shell:
        assert shell.stdin is not None
        shell.stdin.write(b"x = 1\n")
        shell.stdin.flush()
        host.wait_until(lambda: [each.cells for each in client.sessions()] == [1], "the shell has run its cell")
        shell.send_signal(signal.SIGTERM)
        assert shell.wait(DEADLINE_SECONDS) == 128 + signal.SIGTERM
        assert client.sessions() == []


# ---- complete cells


@pytest.mark.parametrize(
    ("language", "lines", "ends_at"),
    [
        pytest.param("python", ["x = 1"], 1, id="statement"),
        pytest.param("python", ["", "x = 1"], 2, id="blank_lines_before"),
        pytest.param("python", ["def f():", "  return 1", ""], 3, id="block"),
        pytest.param("python", ["f(1,", "2)"], 2, id="bracket"),
        pytest.param("python", ["'''a", "", "b'''"], 3, id="long_string"),
        pytest.param("python", ["x = 1 +", ""], 1, id="broken_at_once"),
        pytest.param("python", ["await f()"], 1, id="top_level_await"),
        pytest.param("python", ["!ls -l"], 1, id="system_call"),
        pytest.param("python", ["%timeit x"], 1, id="magic"),
        pytest.param("python", ["%%bash", "echo 1", "echo 2", ""], 4, id="cell_magic"),
        pytest.param("python", ["for x in y:", "  !echo $x", ""], 3, id="system_call_in_a_block"),
        pytest.param("python", ["@cache", "def f(): pass", ""], 3, id="decorator"),
        pytest.param("python", ["if x:", "  1", "else:", "  2", ""], 5, id="else"),
        pytest.param("javascript", ["function f() {", "return '}'", "}"], 3, id="js_function"),
        pytest.param("javascript", ["let s = `a", "b`"], 2, id="js_template"),
        pytest.param("javascript", ["// {", "1"], 1, id="js_comment"),
        pytest.param("bash", ["for x in 1 2; do", "echo $x", "done"], 3, id="bash_loop"),
        pytest.param("bash", ["echo 'a", "b'"], 2, id="bash_quote"),
        pytest.param("bash", ["echo a \\", "b"], 2, id="bash_continued"),
        pytest.param("bash", ["if true; then echo; fi"], 1, id="bash_if_in_a_line"),
    ],
)
def test_a_cell_ends_where_a_user_expects(language: str, lines: list[str], ends_at: int) -> None:
    cell = Cell(language)
    answers = [cell.add(line) for line in lines]
    complete = next((number for number, code in enumerate(answers, 1) if code), None)
    assert complete == ends_at
