"""Real coverage reports, and programs that behave the same while measured."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import belljar
from belljar.contract.errors import InvalidExecution, NotOffered
from belljar.environments import Environments
from belljar.settings import EnvironmentSettings, Settings

PROGRAMS = Path(__file__).parent / "programs"


@pytest.fixture(scope="module")
def box(settings: Settings) -> Iterator[belljar.Sandbox]:
    """A local sandbox; no container image has coverage.py where Belljar looks for it."""
    with belljar.Sandbox(settings=settings) as opened:
        yield opened


BRANCHES = """\
def pick(number):
    if number:
        return "some"
    return "none"

print(pick(1))
"""

CASES = {
    "straight": ("a = 1\nb = 2\n", [1, 2], []),
    "not_taken": (BRANCHES, [1, 2, 3, 6], [4]),
    "raises": ("a = 1\n1 / 0\nb = 2\n", [1, 2], [3]),
    "exits": ("import sys\nsys.exit(3)\nb = 2\n", [1, 2], [3]),
    "exit_functions": ("import atexit\n@atexit.register\ndef late():\n    a = 1\n", [1, 2, 3, 4], []),
    "threads": (
        "import threading\ndef work():\n    a = 1\nt = threading.Thread(target=work)\nt.start()\nt.join()\n",
        [1, 2, 3, 4, 5, 6],
        [],
    ),
    "thread_after_main": (
        "import threading, time\ndef work():\n    threading.main_thread().join()\n    a = 1\n"
        "threading.Thread(target=work).start()\n",
        [1, 2, 3, 4, 5],
        [],
    ),
    "forked_child": ("import os\nif os.fork():\n    os.wait()\nelse:\n    a = 1\n", [1, 2, 3, 5], []),
    "multiprocessing_child": (
        "import multiprocessing as m\ndef work():\n    a = 1\nif __name__ == '__main__':\n"
        "    p = m.get_context('fork').Process(target=work)\n    p.start()\n    p.join()\n",
        [1, 2, 3, 4, 5, 6, 7],
        [],
    ),
    "asyncio": (
        "import asyncio\nasync def work():\n    await asyncio.sleep(0)\nasyncio.run(work())\n",
        [1, 2, 3, 4],
        [],
    ),
    "no_cover": ("if False:  # pragma: no cover\n    a = 1\nb = 2\n", [3], []),
    "leaves_its_directory": ("import os\nos.chdir('/tmp')\na = 1\n", [1, 2, 3], []),
    "own_atexit_is_loud": ("import atexit\natexit.register(lambda: 1 / 0)\n", [1, 2], []),
    "form_feed_and_carriage_returns": ("a = 1\r\nb = 2\r\n\f\nc = 3\n", [1, 2, 4], []),
    "unicode": ("# -*- coding: utf-8 -*-\nnäme = 'ü'\n", [2], []),
}


@pytest.mark.parametrize(("code", "executed", "missing"), CASES.values(), ids=CASES)
def test_lines_that_ran(box: belljar.Sandbox, code: str, executed: list[int], missing: list[int]) -> None:
    report = box.run(code, coverage=True).coverage
    assert report is not None
    [file] = report.files
    assert (file.path, list(file.executed), list(file.missing)) == ("main.py", executed, missing)
    assert report.percent == file.percent == round(100 * len(executed) / len(executed + missing), 2)


def test_branches_on_request(box: belljar.Sandbox) -> None:
    report = box.run(BRANCHES, coverage={"branch": True}).coverage
    assert report is not None
    assert report.files[0].missing_branches == ((2, 4),)
    assert report.percent == 71.43  # 4 of 5 lines and 1 of 2 branches


def test_only_the_programs_modules_count(box: belljar.Sandbox) -> None:
    code = "import json, pkg.inner, made\n" + "with open('late.py', 'w') as f: f.write('a = 1')\nimport late\n"
    files = {
        "pkg/__init__.py": "",
        "pkg/inner.py": "import os\nif not os:\n    a = 1\nb = 2\n",
        "made.py": "a = 1\n",
        "unused.py": "1",
    }
    report = box.run(code, files=files, coverage=True).coverage
    assert report is not None
    assert {file.path: (file.executed, file.missing) for file in report.files} == {
        "main.py": ((1, 2, 3), ()),
        "made.py": ((1,), ()),
        "pkg/__init__.py": ((), ()),
        "pkg/inner.py": ((1, 2, 4), (3,)),
    }


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("while True: pass", id="timed_out"),
        pytest.param("import os; os.kill(os.getpid(), 9)", id="killed"),
        pytest.param("import os; os._exit(0)", id="left_without_exit_functions"),
        pytest.param("a = (", id="syntax_error"),
        pytest.param("b = [b'x' * (1 << 20) for _ in range(4000)]", id="out_of_memory"),
    ],
)
def test_a_program_that_was_cut_short_has_no_report(box: belljar.Sandbox, code: str) -> None:
    assert box.run(code, coverage=True, timeout=2).coverage is None


def test_unmeasured_run_has_no_report(box: belljar.Sandbox) -> None:
    assert box.run("a = 1", coverage=False).coverage is None


#: Programs of the fidelity table with their input.
FAITHFUL: dict[str, dict[str, Any]] = {
    "argv/plain": {"args": ["one", "two words"]},
    "asyncio/subprocess": {},
    "exit/after_error": {},
    "exit/atexit_order": {},
    "exit/keyboard_interrupt": {},
    "exit/main_while_thread_runs": {},
    "exit/string": {},
    "exit/three": {},
    "import/reload": {},
    "main/attributes": {},
    "main/inspect_source": {},
    "main/signals": {},
    "pickle/in_subprocess": {},
    "processes/fork": {},
    "processes/multiprocessing_pool": {},
    "processes/multiprocessing_spawn": {},
    "stdin/iteration": {"stdin": "a\nb\n\nlast"},
    "stdlib/logging": {},
    "stdlib/unittest_failing": {},
    "threads/joined_at_exit": {},
    "traceback/chained": {},
    "traceback/frames_above_main": {},
    "traceback/in_thread": {},
    "traceback/syntax_error": {},
}


@pytest.mark.parametrize("name", FAITHFUL)
def test_a_measured_program_behaves_the_same(
    name: str, box: belljar.Sandbox, settings: Settings, natively: Callable[..., Any], seen: Callable[..., Any]
) -> None:
    code = (PROGRAMS / f"{name}.py").read_text("utf-8")
    environment = Environments(settings.state_dir, settings.environments).require("default")
    expected = natively(code, environment.root, **FAITHFUL[name])
    assert seen(box.run(code, coverage=True, **FAITHFUL[name])) == expected


HIDDEN = """\
import sys
print(sorted(name for name in sys.modules if name.startswith("coverage")))
print([path for path in sys.path if "instruments" in path])
try:
    import coverage
except ImportError:
    print("none")
else:
    print(coverage.whose)
"""


@pytest.mark.parametrize(
    ("files", "found"), [({}, "none"), ({"coverage.py": "whose = 'mine'"}, "mine")], ids=["none", "own"]
)
def test_a_program_sees_only_its_own_coverage(box: belljar.Sandbox, files: dict[str, str], found: str) -> None:
    assert box.run(HIDDEN, files=files, coverage=True).stdout == f"[]\n[]\n{found}\n"


def test_the_programs_module_wins_over_one_of_coverage(box: belljar.Sandbox) -> None:
    files = {"sqlite3.py": "whose = 'mine'", "tokenize.py": "whose = 'mine'"}
    outcome = box.run("import sqlite3\nprint(sqlite3.whose)", files=files, coverage=True)
    assert (outcome.stdout, outcome.stderr) == ("mine\n", "")
    assert outcome.coverage is not None


FORGERY = """\
import os, json
for fd in map(int, os.listdir("/proc/self/fd")):
    try:
        if "coverage" not in os.readlink(f"/proc/self/fd/{fd}"):
            continue
        try:
            os.ftruncate(fd, 1 << 40)
        except OSError as error:
            print(error.strerror)
        text = json.dumps([{"path": "/etc/passwd", "executed": [1], "missing": []}]).encode()
        os.pwrite(fd, text, 8)
        os.pwrite(fd, len(text).to_bytes(8, "little"), 0)
    except OSError:
        pass
os._exit(0)
"""


def test_forged_report_is_dropped(box: belljar.Sandbox) -> None:
    outcome = box.run(FORGERY, coverage=True)
    assert outcome.exit_code == 0, outcome
    assert outcome.coverage is None


#: A forged report of the largest size that can be parsed.
HUGE_FORGERY = """\
import os
def is_ours(fd):
    try:
        return "memfd:coverage" in os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return False
fd = max(filter(is_ours, map(int, os.listdir("/proc/self/fd"))), key=lambda fd: os.fstat(fd).st_size)
body = b'[{"path":"main.py","executed":[1],"missing":[],"branches":9,"missing_branches":['
size = os.fstat(fd).st_size
body += b"[1,1]," * ((size - len(body) - 20) // 6) + b"[1,1]]}]"
os.pwrite(fd, len(body).to_bytes(8, "little") + body, 0)
print(size)
os._exit(0)
"""


def test_a_forged_report_is_limited_to_plausible_size(box: belljar.Sandbox) -> None:
    outcome = box.run(HUGE_FORGERY, coverage={"branch": True})
    assert outcome.exit_code == 0, outcome
    assert outcome.coverage is None
    assert 0 < int(outcome.stdout) < 4096


def test_the_longest_report_fits(box: belljar.Sandbox) -> None:
    ifs = "def never():\n" + "    if a:\n        b\n" * 3000
    report = box.run(ifs, files={"ünter/😀.py": "1\n"}, coverage={"branch": True}).coverage
    assert report is not None
    assert len(report.files[0].missing) == len(report.files[0].missing_branches or ()) == 6000


def test_a_program_with_large_packages_is_measured(box: belljar.Sandbox) -> None:
    report = box.run("import numpy\nif numpy.ones(3).sum() > 5:\n    a = 1\n", coverage=True).coverage
    assert report is not None
    assert report.files[0].missing == (3,)


def test_many_lines(box: belljar.Sandbox) -> None:
    report = box.run("a = 1\n" * 100_000, coverage=True, timeout=60).coverage
    assert report is not None
    assert len(report.files[0].executed) == 100_000


def test_unknown_kind_of_coverage_is_named(box: belljar.Sandbox) -> None:
    with pytest.raises(InvalidExecution, match="coverage has no 'branches'") as caught:
        box.run("1", coverage={"branches": True})
    assert caught.value.details["field"] == "coverage"


def test_an_environment_without_coverage_is_explained(settings: Settings, tmp_path: Path) -> None:
    spec = EnvironmentSettings(packages=(), warm_imports=())
    bare = dataclasses.replace(settings, state_dir=tmp_path, environments={"default": spec})
    with belljar.Sandbox(settings=bare) as box:
        assert box.run("print(1)").stdout == "1\n"
        with pytest.raises(NotOffered, match=r"belljar env create default .*--replace"):
            box.run("print(1)", coverage=True)
        assert box.run("print(2)").stdout == "2\n"


def test_only_python_is_measured(box: belljar.Sandbox) -> None:
    with pytest.raises(InvalidExecution, match="coverage is measured for python only, not for sh") as caught:
        box.run("echo 1", language="sh", coverage=True)
    assert caught.value.details["field"] == "coverage"


def test_measuring_leaves_no_descriptor_open(narrow_box: belljar.Sandbox, host: Any) -> None:
    narrow_box.run("a = 1", coverage=True)
    before = len(os.listdir("/proc/self/fd"))
    for code in ("a = 1", "1 / 0", "while True: pass", "import os; os.kill(os.getpid(), 9)", "a = ("):
        narrow_box.run(code, coverage=True, timeout=1)
    for _ in narrow_box.stream("import time; print(1, flush=True); time.sleep(60)", coverage=True):
        break  # cancels the program
    narrow_box.run("a = 1")
    # The descriptors of a guest are closed after its answer.
    host.wait_until(lambda: len(os.listdir("/proc/self/fd")) <= before, "every descriptor is closed")


def test_restricted_program_is_measured(box: belljar.Sandbox) -> None:
    outcome = box.run("import math\nif math.pi < 3:\n    a = 1\n", restrict={"imports": ["math"]}, coverage=True)
    assert (outcome.status, outcome.stderr) == ("ok", "")
    assert outcome.coverage is not None
    assert outcome.coverage.files[0].missing == (3,)


def test_command_line_prints_a_table_beside_the_output(settings: Settings, sources: Path) -> None:
    environ = {
        **os.environ,
        "PYTHONPATH": str(sources),
        "BELLJAR_STATE_DIR": str(settings.state_dir),
        "BELLJAR_RUNTIME_DIR": str(settings.runtime_dir),
        "BELLJAR_JAIL_UID_BASE": str(settings.jail.uid_base),
        "BELLJAR_JAIL_CGROUP_PARENT": settings.jail.cgroup_parent,
    }
    command = [sys.executable, "-m", "belljar", "run", "--branch-coverage", "-c", BRANCHES]
    done = subprocess.run(command, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "some\n"), done.stderr
    assert re.search(r"^ *main\.py +71\.43 % +4, 2→4 *$", done.stderr, re.M), done.stderr
