"""Sessions behave like IPython and report correctly how they ended."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import belljar
from belljar.contract.errors import (
    FileNotInSession,
    InvalidExecution,
    NotOffered,
    SessionBusy,
    SessionEnded,
    TooLarge,
    UnsafePath,
)
from belljar.contract.execution import Display, Finished, Outcome, Output, Started
from belljar.settings import Settings


@pytest.fixture(scope="module")
def box(settings: Settings) -> Iterator[belljar.Sandbox]:
    """Only the local back end: others have the same sessions or none."""
    with belljar.Sandbox(settings=settings) as opened:
        yield opened


@pytest.fixture(scope="module")
def shared(box: belljar.Sandbox) -> Iterator[Any]:
    """A shared session for tests that do not change its state."""
    with box.session() as session:
        yield session


@pytest.fixture
def session(box: belljar.Sandbox) -> Iterator[Any]:
    with box.session() as opened:
        yield opened


def value(outcome: Outcome) -> str:
    """The value of the cell's last expression as text."""
    assert outcome.ok, (outcome.status, outcome.stderr)
    texts = [display.content.decode() for display in outcome.displays if display.is_result and is_plain(display)]
    assert len(texts) == 1
    return texts[0]


def is_plain(display: Display) -> bool:
    return display.mime == "text/plain"


def forms(outcome: Outcome) -> set[str]:
    return {display.mime for display in outcome.displays}


def test_state_persists_and_cells_are_numbered(session: Any) -> None:
    first = session.run("x = 20\ndef double(n):\n    return 2 * n")
    second = session.run("double(x) + 2")
    assert (first.cell, second.cell) == (1, 2)
    assert value(second) == "42"
    assert session.state().cells == 2
    assert value(session.run("_ + 1")) == "43"


def test_two_sessions_share_nothing(box: belljar.Sandbox) -> None:
    with box.session() as one, box.session() as other:
        one.run("x = 1; open('f', 'w').write('1'); open('/tmp/f', 'w').write('1')")
        outcome = other.run("import os\nprint('x' in dir(), os.path.exists('f'), os.path.exists('/tmp/f'))")
        assert outcome.stdout == "False False False\n"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        pytest.param("import pandas\npandas.DataFrame({'a': [1]})", {"text/plain", "text/html"}, id="frame"),
        pytest.param("display(1)", {"text/plain"}, id="display"),
        pytest.param("from IPython.display import SVG\nSVG('<svg/>')", {"text/plain", "image/svg+xml"}, id="svg"),
        pytest.param("from IPython.display import JSON\nJSON({'a': 1})", {"text/plain", "application/json"}, id="json"),
        pytest.param("from IPython.display import Markdown\nMarkdown('*a*')", {"text/plain", "text/markdown"}, id="md"),
        pytest.param("import sympy\nsympy.Symbol('x')", {"text/plain", "text/latex"}, id="latex"),
        pytest.param(
            "from IPython.display import HTML, display\ndisplay(HTML('<b>'))", {"text/plain", "text/html"}, id="html"
        ),
        pytest.param(
            "from PIL import Image\nImage.new('RGB', (2, 2))", {"text/plain", "image/png", "image/jpeg"}, id="image"
        ),
        pytest.param("import matplotlib.pyplot as plt\nplt.plot([1]);", {"image/png"}, id="open_figure"),
        pytest.param("%matplotlib inline\nplt.plot([1]); plt.show()", {"image/png"}, id="shown_figure"),
        pytest.param("1;", set(), id="semicolon"),
    ],
)
def test_rich_forms_arrive(shared: Any, code: str, expected: set[str]) -> None:
    outcome = shared.run(code)
    assert outcome.ok, outcome.stderr
    assert forms(outcome) == expected


def test_forms_of_one_value_share_a_bundle(shared: Any) -> None:
    outcome = shared.run("import pandas\nf = pandas.DataFrame({'a': [1]})\ndisplay(f)\nf")
    numbers = [display.bundle for display in outcome.displays]
    assert numbers == [1, 1, 2, 2]
    assert [display.is_result for display in outcome.displays] == [False, False, True, True]


def test_a_figure_that_is_the_value_is_shown_once(shared: Any) -> None:
    outcome = shared.run("import matplotlib.pyplot as plt\nfigure = plt.figure()\nfigure")
    assert [display.mime for display in outcome.displays].count("image/png") == 1
    assert not shared.run("1;").displays


@pytest.mark.parametrize(
    ("code", "stdout"),
    [
        pytest.param("!echo one; echo two", "one\ntwo\n", id="shell"),
        pytest.param("lines = !echo captured\nprint(lines[0])", "captured\n", id="shell_captured"),
        pytest.param("%%bash\necho here", "here\n", id="bash_magic"),
        pytest.param("%%writefile made.py\nanswer = 42", "Writing made.py\n", id="writefile"),
        pytest.param("import made; print(made.answer)", "42\n", id="own_module"),
        pytest.param("import asyncio\nawait asyncio.sleep(0)\nprint('after')", "after\n", id="await"),
        pytest.param("async def f():\n    return 5\nprint(await f())", "5\n", id="await_value"),
        pytest.param("import subprocess\nsubprocess.run(['echo', 'child']);", "child\n", id="child"),
        pytest.param("print(__name__)", "__main__\n", id="main"),
        pytest.param(
            "import multiprocessing as m\ndef f(n):\n return n * 2\nwith m.Pool(2) as p:\n print(p.map(f, [1, 2]))",
            "[2, 4]\n",
            id="pool",
        ),
        pytest.param(
            "import pickle\nclass C: pass\nprint(type(pickle.loads(pickle.dumps(C()))) is C)", "True\n", id="pickle"
        ),
        pytest.param(
            "import inspect\ndef f(): return 1\nprint(inspect.getsource(f))", "def f(): return 1\n\n", id="source"
        ),
    ],
)
def test_cells_do_what_ipython_does(shared: Any, code: str, stdout: str) -> None:
    outcome = shared.run(code)
    assert outcome.ok, outcome.stderr
    assert outcome.stdout == stdout


def test_an_idle_session_is_one_thread_and_has_no_children(shared: Any) -> None:
    shared.run("%%bash\ntrue")
    # The thread that waited for the script may take a moment to end.
    alone = "while len(os.listdir('/proc/self/task')) > 1: time.sleep(0.01)"
    outcome = shared.run(f"import os, time\n{alone}\nprint('alone')\n!true", timeout=30)
    assert outcome.stdout == "alone\n"


def test_a_traceback_has_no_colours_and_no_frames_of_belljar(shared: Any) -> None:
    outcome = shared.run("def f():\n    return 1 / 0\nf()")
    assert (outcome.status, outcome.exit_code) == ("failed", 1)
    assert outcome.error is not None
    assert (outcome.error.type, outcome.error.message) == ("ZeroDivisionError", "division by zero")
    text = "\n".join(outcome.error.traceback)
    assert text.strip() == outcome.stderr.strip()
    assert "----> 2" in text
    assert "\x1b" not in text
    assert "belljar" not in text
    assert "interactiveshell" not in text


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        pytest.param("(", "SyntaxError", id="syntax"),
        pytest.param("%nope", "UsageError", id="magic"),
        pytest.param("raise SystemExit(3)", "SystemExit", id="exit"),
        pytest.param("class E(Exception):\n    def __str__(self): raise ValueError\nraise E", "E", id="message_raises"),
        pytest.param("input('name? ')", "EOFError", id="input"),
    ],
)
def test_a_failed_cell_names_its_error_and_the_session_continues(shared: Any, code: str, kind: str) -> None:
    outcome = shared.run(code, timeout=5)
    assert outcome.status == "failed"
    assert outcome.error is not None
    assert outcome.error.type == kind
    assert shared.run("1").ok


def test_the_traceback_of_a_recursion_is_shortened(shared: Any) -> None:
    outcome = shared.run("def f(n): return f(n + 1)\nf(0)")
    assert outcome.error is not None
    assert outcome.error.type == "RecursionError"
    assert "calls in the middle are left out" in outcome.stderr
    assert len(outcome.stderr) < 4000


def test_an_exception_that_cannot_be_shown_is_reported_on_standard_error(shared: Any) -> None:
    code = "class E(Exception):\n    def __getattr__(self, name): raise RuntimeError('no ' + name)\nraise E"
    outcome = shared.run(code)
    assert (outcome.status, outcome.stdout) == ("failed", "")
    assert "Unexpected exception" in outcome.stderr


def test_input_fails_with_advice(shared: Any) -> None:
    outcome = shared.run("input()")
    assert outcome.error is not None
    assert "no keyboard" in outcome.error.message
    assert "belljar" not in outcome.stderr


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("while True: pass", id="spins"),
        pytest.param("import time; time.sleep(99)", id="sleeps"),
        pytest.param("import asyncio; await asyncio.sleep(99)", id="awaits"),
        pytest.param("!sleep 99", id="waits_for_child"),
        pytest.param("import threading; threading.Event().wait()", id="waits_for_nothing"),
    ],
)
def test_a_cell_that_takes_too_long_is_interrupted_and_the_state_survives(shared: Any, code: str) -> None:
    shared.run("kept = 7")
    outcome = shared.run(code, timeout=0.3)
    assert outcome.status == "timed_out", outcome
    assert value(shared.run("kept")) == "7"


def test_an_interrupted_await_does_not_continue_in_the_next_cell(session: Any) -> None:
    loop = "import asyncio\nwhile True:\n    await asyncio.sleep(0.01)\n    print('old')"
    assert session.run(loop, timeout=0.3).error.type == "KeyboardInterrupt"
    assert session.run("await asyncio.sleep(0.1)\nprint('new')").stdout == "new\n"


def test_a_cell_that_ignores_interrupts_ends_the_session(session: Any) -> None:
    code = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass"
    outcome = session.run(code, timeout=3)
    assert outcome.status == "timed_out"
    assert outcome.error is not None
    assert outcome.error.type == "SessionEnded"
    with pytest.raises(SessionEnded) as caught:
        session.run("1")
    assert caught.value.details["reason"] == "timeout"


def test_interrupt_raises_in_the_running_cell(session: Any) -> None:
    assert not session.interrupt()
    answers: list[Outcome] = []
    running = threading.Thread(
        target=lambda: answers.append(session.run("print('up')\nimport time\ntime.sleep(60)", timeout=60))
    )
    running.start()
    wait_until(lambda: session.state().is_busy)
    deadline = time.monotonic() + 20
    while running.is_alive():  # it is busy before its first line runs
        assert time.monotonic() < deadline
        session.interrupt()
        running.join(0.2)
    assert answers[0].status == "failed"
    assert answers[0].error is not None
    assert answers[0].error.type == "KeyboardInterrupt"
    assert session.run("1").ok


def wait_until(condition: Any, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("code", "status", "exit_code", "signal", "reason"),
    [
        pytest.param("import os; os._exit(3)", "failed", 3, None, "exit", id="exit"),
        pytest.param("import os; os._exit(0)", "failed", 0, None, "exit", id="exit_0"),
        pytest.param("exit", "failed", 0, None, "exit", id="ipython_exit"),
        pytest.param("import os; os.abort()", "crashed", None, "SIGABRT", "crash", id="abort"),
        pytest.param("import ctypes; ctypes.string_at(0)", "crashed", None, "SIGSEGV", "crash", id="segfault"),
        pytest.param("import os; os.kill(-1, 9)", "failed", 0, None, None, id="kill_everyone"),
        pytest.param("import os; os.kill(0, 9)", "crashed", None, "SIGKILL", "crash", id="kill_own_group"),
        pytest.param("x = bytearray(200 << 20)", "out_of_memory", None, "SIGKILL", "memory", id="memory"),
        pytest.param(
            "import os\nif os.fork() == 0:\n    x = bytearray(200 << 20)\nos.wait()",
            "out_of_memory", None, None, "memory", id="memory_of_a_child",
        ),
        pytest.param(
            "import os\nos.write(3, b'garbage')\nimport time; time.sleep(9)",
            "crashed", None, "SIGKILL", "crash", id="garbage",
        ),
        pytest.param(
            "import os, json, struct\nt = json.dumps({'ended': 99, 'error': None}).encode()\n"
            "os.write(3, struct.pack('>I', len(t)) + t)\nimport time; time.sleep(9)",
            "crashed", None, "SIGKILL", "crash", id="forged_end_of_another_cell",
        ),
        pytest.param("import os; os.close(3)", "failed", 70, None, "exit", id="closed_channel"),
    ],
)  # fmt: skip
def test_the_end_of_a_session_is_reported(
    box: belljar.Sandbox, code: str, status: str, exit_code: int | None, signal: str | None, reason: str | None
) -> None:
    with box.session(memory_mb=100) as session:
        outcome = session.run(code, timeout=15)
        if reason is None:  # it may not reach its own process
            assert outcome.status in ("ok", "failed")
            return
        assert outcome.status == status, outcome
        assert outcome.error is not None
        assert outcome.error.type == "SessionEnded"
        if reason != "memory":
            assert (outcome.exit_code, outcome.signal) == (exit_code, signal)
        for _ in range(2):
            with pytest.raises(SessionEnded) as caught:
                session.run("1")
            assert caught.value.details["reason"] == reason


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("import os; os.close(1); os.close(2)", id="closed_descriptors"),
        pytest.param("import sys; sys.stdout.close()", id="closed_stream"),
        pytest.param("import os; os.closerange(4, 1024)", id="closed_all_others"),
        pytest.param("import sys; sys.stdout = None", id="no_stream"),
        pytest.param("import os\nos.fork()\nprint('x')", id="fork_that_runs_off_the_end"),
        pytest.param("import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)", id="ignored_interrupts"),
        pytest.param(
            "import signal\ndef late(*_): raise RuntimeError\nsignal.signal(signal.SIGALRM, late)\n"
            "signal.setitimer(signal.ITIMER_REAL, 0.05)",
            id="alarm_between_cells",
        ),
        pytest.param("__import__('os').dup2(1, 2)", id="streams_joined"),
        pytest.param("import builtins; builtins.print = None", id="no_print"),
    ],
)
def test_a_session_survives_what_a_cell_does_to_it(session: Any, code: str) -> None:
    session.run(code)
    time.sleep(0.1)
    outcome = session.run("import os\nos.write(1, b'out'); os.write(2, b'err'); 5")
    assert value(outcome) == "5"
    assert outcome.stdout == "out"
    assert outcome.stderr.endswith("err")
    assert session.run("!echo child").stdout == "child\n"


def test_output_between_cells_appears_in_the_next_cell_and_is_marked(session: Any) -> None:
    session.run("import threading\ngo = threading.Event()\ndef work():\n    go.wait(); print('late', flush=True)")
    session.run("thread = threading.Thread(target=work); thread.start()")
    outcome = session.run("go.set(); thread.join(); print('mine')")
    assert outcome.stdout == "mine\n"
    assert outcome.stderr == ""
    after = session.run("print('next')")
    assert after.stdout == "next\n"
    assert after.stderr == "[written between cells]\nlate\n[end of what was written between cells]\n"
    assert session.run("1;").stderr == ""


def test_a_task_of_an_earlier_cell_does_not_write_into_a_later_one(session: Any) -> None:
    session.run(
        "import asyncio\nasync def tick():\n    while True:\n        print('tick'); await asyncio.sleep(0.01)\n"
        "task = asyncio.ensure_future(tick()); await asyncio.sleep(0)"
    )
    assert session.run("await asyncio.sleep(0.1); print('mine')").stdout == "mine\n"
    assert "tick" in session.run("task.cancel();").stderr


def test_a_child_that_keeps_writing_survives_and_its_output_is_separate(session: Any) -> None:
    session.run("import subprocess\nchild = subprocess.Popen('while sleep 0.05; do echo child; done', shell=True)")
    outcome = session.run("import time; time.sleep(0.3); print('mine')")
    assert outcome.stdout == "mine\n"
    after = session.run("child.poll() is None")
    assert value(after) == "True"
    assert "child" in after.stderr


def test_buffered_output_belongs_to_its_cell(session: Any) -> None:
    assert session.run("print('no newline', end='')").stdout == "no newline"
    assert session.run("import ctypes; ctypes.CDLL(None).printf(b'from C')").stdout == "from C"
    assert session.run("print(end='')").stdout == ""


def test_output_is_cut_and_a_flood_is_interrupted(box: belljar.Sandbox) -> None:
    with box.session(limits={"output_kb": 10}) as session:
        outcome = session.run("print('x' * 100_000)")
        assert outcome.ok
        assert len(outcome.stdout) == 10 * 1024
        assert outcome.stdout_cut
        assert session.run("print(1)").stdout == "1\n"


def test_displays_beyond_the_limit_are_dropped_with_a_notice(session: Any) -> None:
    outcome = session.run("display({'text/plain': 'y' * (20 << 20)}, raw=True)\ndisplay(7)")
    assert [display.content for display in outcome.displays] == [b"7"]
    assert "dropped" in outcome.stderr
    many = session.run("for n in range(100): display(n)")
    assert len(many.displays) == 64
    assert "36 of what this cell showed was dropped" in many.stderr


def test_a_flood_of_displays_is_interrupted_and_the_state_survives(session: Any) -> None:
    session.run("x = 1")
    outcome = session.run("while True: display({'text/plain': 'y' * (4 << 20)}, raw=True)", timeout=60)
    assert outcome.status == "output_limit"
    assert "dropped" in outcome.stderr
    assert session.run("print(x)").stdout == "1\n"


def test_forged_displays_do_no_harm(session: Any) -> None:
    outcome = session.run(
        "import os\nfor n in range(4, 64):\n    try: os.write(n, b'\\xff' * 100)\n    except OSError: pass"
    )
    assert outcome.status in ("ok", "crashed")


def test_limits_apply_to_the_whole_session(box: belljar.Sandbox) -> None:
    with box.session(memory_mb=150, limits={"disk_mb": 10}) as session:
        assert session.run("kept = [b'x' * (40 << 20)]").ok
        assert session.run("open('a', 'wb').write(b'x' * (6 << 20))").ok
        assert session.run("open('b', 'wb').write(b'x' * (6 << 20))").error.type == "OSError"
        with pytest.raises(TooLarge):
            session.write_file("c", b"x" * (6 << 20))
        assert session.run("kept.append(b'y' * (140 << 20))").status == "out_of_memory"


def test_a_cell_cannot_change_limits_of_the_session(shared: Any) -> None:
    with pytest.raises(InvalidExecution, match="whole session"):
        shared.run("1", limits={"memory_mb": 10})


def test_cpu_time_is_counted_per_cell(box: belljar.Sandbox) -> None:
    spin = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass"
    with box.session(limits={"cpu_seconds": 0.5, "wall_seconds": 9}) as session:
        assert [session.run(spin).status for _ in range(3)] == ["ok"] * 3
        assert session.run("while True: pass").status == "timed_out"
        assert session.run("1").ok


def test_a_stream_yields_events_as_they_happen(session: Any) -> None:
    events = list(session.stream("print('a')\ndisplay(1)\nimport sys; print('b', file=sys.stderr)\n2"))
    assert isinstance(events[0], Started)
    assert isinstance(events[-1], Finished)
    assert events[-1].outcome.cell == 1
    texts = {event.stream: event.text for event in events if isinstance(event, Output)}
    assert texts == {"stdout": "a\n", "stderr": "b\n"}
    assert [event.content for event in events if isinstance(event, Display)] == [b"1", b"2"]


def test_closing_a_stream_interrupts_the_cell_and_the_state_survives(session: Any) -> None:
    session.run("kept = 5")
    for event in session.stream("import time\nprint('up')\nwhile True: time.sleep(0.01)", timeout=60):
        if isinstance(event, Output):
            break
    assert value(session.run("kept")) == "5"


def test_a_busy_session_refuses_cells_that_do_not_wait(session: Any) -> None:
    events = session.stream("print('up')\nimport time; time.sleep(60)", timeout=60)
    assert any(isinstance(event, Output) for event in (next(events), next(events)))
    with pytest.raises(SessionBusy):
        session.run("1", waits=False)
    events.close()
    assert session.run("1", waits=False).ok


def test_files_are_uploaded_and_downloaded(session: Any) -> None:
    session.write_file("data/deep/in.bin", bytes(range(256)))
    assert session.run("data = open('data/deep/in.bin', 'rb').read(); open('out.bin', 'wb').write(data[::-1])").ok
    assert session.read_file("out.bin") == bytes(range(256))[::-1]
    assert [file.path for file in session.files()] == ["data/deep/in.bin", "out.bin"]
    assert [file.size_bytes for file in session.files()] == [256, 256]
    session.write_file("data/deep/in.bin", "replaced")
    assert value(session.run("open('data/deep/in.bin').read()")) == "'replaced'"
    session.run("open('data/deep/in.bin', 'a').write('!'); import os; os.chmod('data', 0o700)")
    assert session.read_file("data/deep/in.bin") == b"replaced!"
    session.delete_file("data/deep/in.bin")
    for forget in (session.delete_file, session.read_file):
        with pytest.raises(FileNotInSession):
            forget("data/deep/in.bin")
    made = session.run("open('new.txt', 'w').write('n'); open('no', 'w');", artifacts=["*.txt"])
    assert [(file.path, file.content) for file in made.artifacts] == [("new.txt", b"n")]


def test_files_of_the_request_are_in_the_work_directory(box: belljar.Sandbox) -> None:
    with box.session(files={"a/b.txt": "hi", "large": b"x" * 300_000}, env={"WHO": "me"}) as session:
        assert (
            session.run("import os; print(open('a/b.txt').read(), len(open('large').read()), os.environ['WHO'])").stdout
            == "hi 300000 me\n"
        )


def test_large_cells_arrive(session: Any) -> None:
    assert value(session.run("x = '" + "y" * 300_000 + "'\nlen(x)")) == "300000"


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a/../../x", "", "a/", "x\0y"])
def test_paths_stay_inside(shared: Any, path: str) -> None:
    with pytest.raises(UnsafePath):
        shared.write_file(path, b"")
    with pytest.raises(UnsafePath):
        shared.read_file(path)


def test_planted_links_are_not_followed(session: Any) -> None:
    session.run(
        "import os\nos.symlink('/etc/passwd', 'link'); os.symlink('/etc', 'dir'); os.symlink('/', 'up')\n"
        "os.mkfifo('pipe'); os.mkdir('real'); os.symlink('real', 'alias')"
    )
    for path in ("link", "dir/passwd", "up/etc/passwd", "pipe", "real", "alias/x"):
        with pytest.raises(FileNotInSession):
            session.read_file(path)
    for path in ("dir/x", "up/tmp/x", "alias/x", "link/x", "real"):
        with pytest.raises(UnsafePath):
            session.write_file(path, b"x")
    session.write_file("link", b"mine")
    session.write_file("pipe", b"mine")
    assert value(session.run("os.path.islink('link'), open('link').read(), open('pipe').read()")) == (
        "(False, 'mine', 'mine')"
    )
    assert [file.path for file in session.files()] == ["link", "pipe"]
    collected = session.run("1;", artifacts=["**"]).artifacts
    assert [file.path for file in collected] == ["link", "pipe"]


def test_a_tree_that_changes_all_the_time_is_read_safely(session: Any) -> None:
    session.run(
        "import threading, os\nrun = True\nos.mkdir('d')\nopen('d/f', 'w').write('inside')\ndef swap():\n"
        "    while run:\n        os.rename('d', 'e'); os.symlink('/etc', 'd'); os.unlink('d'); os.rename('e', 'd')\n"
        "thread = threading.Thread(target=swap); thread.start()"
    )
    for _ in range(50):
        with contextlib.suppress(FileNotInSession):
            assert session.read_file("d/f") == b"inside"
        with pytest.raises(FileNotInSession):
            session.read_file("d/passwd")
    session.run("run = False; thread.join()")


def test_other_languages_are_not_offered(box: belljar.Sandbox) -> None:
    with pytest.raises(NotOffered):
        box.session(language="cobol").open()
