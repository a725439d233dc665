"""The exception that ended a program is parsed from the output of real interpreters and from forged output."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from belljar.engine.tracebacks import TAIL_CHARACTERS, read_error

HEADER = "Traceback (most recent call last):"


def stderr_of(program: str, directory: Path) -> str:
    source = directory / "main.py"
    source.write_text(program, "utf-8")
    answer = subprocess.run(
        [sys.executable, "-I", "-X", "utf8", str(source)],
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )
    assert answer.returncode == 1, answer.stderr
    return answer.stderr


@pytest.mark.parametrize(
    ("program", "type_name", "message"),
    [
        pytest.param("1/0", "ZeroDivisionError", "division by zero", id="plain"),
        pytest.param("raise ValueError", "ValueError", "", id="no_message"),
        pytest.param("raise ValueError('a\\nb\\n\\n  c')", "ValueError", "a\nb\n\n  c", id="many_lines"),
        pytest.param("raise ValueError('\\nb')", "ValueError", "\nb", id="message_that_starts_with_a_newline"),
        pytest.param("raise ValueError('a: b')", "ValueError", "a: b", id="colon_in_message"),
        pytest.param("{}['x']", "KeyError", "'x'", id="repr_as_message"),
        pytest.param("import json; json.loads('[')", "JSONDecodeError", None, id="dotted_type"),
        pytest.param(
            "def f():\n class Inner(Exception): pass\n raise Inner('m')\nf()", "Inner", "m", id="type_inside_a_function"
        ),
        pytest.param("class Größe(Exception): pass\nraise Größe('ü')", "Größe", "ü", id="unicode_type"),
        pytest.param("try:\n 1/0\nexcept Exception as e:\n raise KeyError(1) from e", "KeyError", "1", id="cause"),
        pytest.param("try:\n 1/0\nexcept Exception:\n raise KeyError(2)", "KeyError", "2", id="context"),
        pytest.param("x = 1\na b", "SyntaxError", "invalid syntax", id="syntax_error"),
        pytest.param("if 1:\nx", "IndentationError", None, id="indentation_error"),
        pytest.param("if 1:\n        x\n\tx", "TabError", None, id="tab_error"),
        pytest.param("exec('a b')", "SyntaxError", "invalid syntax", id="syntax_error_with_frames"),
        pytest.param(
            "e = ValueError('m'); e.add_note('one'); e.add_note('two\\nthree'); raise e",
            "ValueError",
            "m\none\ntwo\nthree",
            id="notes",
        ),
        pytest.param(
            "raise ExceptionGroup('several', [ValueError(1), ExceptionGroup('inner', [TypeError(2)])])",
            "ExceptionGroup",
            "several (2 sub-exceptions)",
            id="group",
        ),
        pytest.param(
            "raise ExceptionGroup('two\\nlines', [ValueError(1)])",
            "ExceptionGroup",
            "two\nlines (1 sub-exception)",
            id="group_with_a_long_message",
        ),
        pytest.param(
            "try:\n 1/0\nexcept Exception as e:\n raise ExceptionGroup('g', [ValueError(1)]) from e",
            "ExceptionGroup",
            "g (1 sub-exception)",
            id="group_with_a_cause",
        ),
        pytest.param(
            "try:\n raise ExceptionGroup('g', [ValueError(1)])\nexcept* ValueError:\n raise KeyError(3)",
            "KeyError",
            "3",
            id="after_a_group",
        ),
        pytest.param("def f(): f()\nf()", "RecursionError", None, id="recursion"),
        pytest.param(
            f"def {'f' * 60}(): g()\ndef g(): {'f' * 60}()\ng()",
            "RecursionError",
            None,
            id="more_frames_than_are_looked_at",
        ),
        pytest.param("import warnings; warnings.warn('w'); 1/0", "ZeroDivisionError", None, id="after_a_warning"),
        pytest.param(
            "import sys; print('line one\\nUnlikely: text', file=sys.stderr); 1/0",
            "ZeroDivisionError",
            "division by zero",
            id="after_other_output",
        ),
        pytest.param(
            "import traceback\ntry: [][0]\nexcept Exception: traceback.print_exc()\n1/0",
            "ZeroDivisionError",
            "division by zero",
            id="after_a_handled_one",
        ),
        pytest.param(
            "import sys, traceback\ntry: [][0]\nexcept Exception: traceback.print_exc()\nsys.exit(1)",
            "IndexError",
            "list index out of range",
            id="printed_by_hand_before_exit",
        ),
        pytest.param(
            "import threading\ndef f():\n threading.main_thread().join()\n raise OSError('in thread')\n"
            "threading.Thread(target=f).start()\nraise KeyError('main')",
            "KeyError",
            "'main'",
            id="a_thread_fails_as_well",
        ),
        pytest.param(
            "class A:\n def __del__(self): raise OSError('late')\na = A()\n1/0",
            "ZeroDivisionError",
            "division by zero",
            id="a_finalizer_fails_as_well",
        ),
        pytest.param(
            "import atexit\natexit.register(lambda: [][0])\n1/0",
            "ZeroDivisionError",
            "division by zero",
            id="an_exit_function_fails_as_well",
        ),
        pytest.param(
            "import asyncio\nasync def b(): raise OSError('b')\n"
            "async def m():\n t = asyncio.create_task(b())\n await asyncio.sleep(0)\n raise KeyError(4)\n"
            "asyncio.run(m())",
            "KeyError",
            "4",
            id="a_task_fails_as_well",
        ),
        pytest.param(
            "import multiprocessing as mp\ndef f(x): raise ValueError('remote')\n"
            "if __name__ == '__main__':\n with mp.get_context('fork').Pool(1) as p: p.map(f, [1])",
            "ValueError",
            "remote",
            id="from_another_process",
        ),
        pytest.param(
            "class E(Exception):\n def __str__(self): raise OSError\nraise E",
            "E",
            "<exception str() failed>",
            id="message_that_cannot_be_made",
        ),
    ],
)
def test_an_uncaught_exception_is_parsed(program: str, type_name: str, message: str | None, tmp_path: Path) -> None:
    error = read_error(stderr_of(program, tmp_path))
    assert error is not None
    assert error.type == type_name
    if message is not None:
        assert error.message == message
    assert len(error.traceback) >= 2


@pytest.mark.parametrize(
    "program",
    [
        pytest.param("import sys; sys.exit('bye')", id="exit_with_a_message"),
        pytest.param("import sys; print('Some: text', file=sys.stderr); sys.exit(1)", id="exit_with_a_code"),
        pytest.param("import os; os._exit(1)", id="silent_exit"),
    ],
)
def test_an_exit_is_not_an_exception(program: str, tmp_path: Path) -> None:
    assert read_error(stderr_of(program, tmp_path)) is None


def test_the_traceback_is_that_of_the_last_exception_alone(tmp_path: Path) -> None:
    error = read_error(stderr_of("try:\n 1/0\nexcept Exception:\n raise KeyError('x')", tmp_path))
    assert error is not None
    assert error.traceback[0] == HEADER
    assert error.traceback[-2:] == ("    raise KeyError('x')", "KeyError: 'x'")
    assert "ZeroDivisionError: division by zero" not in error.traceback


def test_a_group_shows_its_members_in_the_traceback(tmp_path: Path) -> None:
    error = read_error(stderr_of("raise ExceptionGroup('g', [ValueError('inside')])", tmp_path))
    assert error is not None
    assert any("ValueError: inside" in line for line in error.traceback)


OLD_SYNTAX_ERROR = '  File "main.py", line 1\n    a b\n      ^\nSyntaxError: invalid syntax\n'
COLOURED = (
    f'{HEADER}\n  File \x1b[35m"main.py"\x1b[0m, line \x1b[35m1\x1b[0m, in \x1b[35m<module>\x1b[0m\n'
    "    \x1b[31m1\x1b[0m\x1b[1;31m/\x1b[0m\x1b[31m0\x1b[0m\n    \x1b[31m~\x1b[0m\x1b[1;31m^\x1b[0m\x1b[31m~\x1b[0m\n"
    "\x1b[1;35mZeroDivisionError\x1b[0m: \x1b[35mdivision by zero\x1b[0m\n"
)


@pytest.mark.parametrize(
    ("stderr", "expected"),
    [
        pytest.param("", None, id="nothing"),
        pytest.param("\n\n\n", None, id="blank_lines"),
        pytest.param(HEADER, None, id="header_alone"),
        pytest.param(f"{HEADER}\nValueError: x\n", None, id="no_frames"),
        pytest.param(f'{HEADER}\n  File "x", line 1\n', None, id="no_exception"),
        pytest.param(f'{HEADER}\n  File "x", line 1\n\n', None, id="a_blank_line_for_exception"),
        pytest.param(f'{HEADER}\n  File "x", line 1\nnot a type: x\n', None, id="not_a_type"),
        pytest.param('  File "x", line 1\nValueError: x\n', None, id="no_header"),
        pytest.param(OLD_SYNTAX_ERROR, ("SyntaxError", "invalid syntax"), id="python_3_9"),
        pytest.param(COLOURED, ("ZeroDivisionError", "division by zero"), id="python_3_13_in_colour"),
        pytest.param("noise\n" * 50_000 + COLOURED, ("ZeroDivisionError", "division by zero"), id="after_much_noise"),
        pytest.param(COLOURED + "x" * (TAIL_CHARACTERS + 10), None, id="message_longer_than_is_looked_at"),
        pytest.param(
            'Current thread 0x1 (most recent call first):\n  File "x", line 1 in f\nSegmentation: fault',
            None,
            id="faulthandler",
        ),
    ],
)
def test_text_is_parsed(stderr: str, expected: tuple[str, str] | None) -> None:
    error = read_error(stderr)
    assert (error and (error.type, error.message)) == expected


LINES = st.sampled_from(
    [
        HEADER,
        '  File "main.py", line 1, in <module>',
        "    code",
        "ValueError: x",
        "ValueError",
        "SyntaxError: y",
        "  + Exception Group Traceback (most recent call last):",
        '  |   File "main.py", line 1, in <module>',
        "  | ExceptionGroup: g (1 sub-exception)",
        "  +-+---------------- 1 ----------------",
        "    | ValueError: 1",
        "Exception in thread Thread-1:",
        "Exception ignored in: <x>",
        "",
        "\x1b[31m",
        "  ",
        ": ",
        "\ud800",
    ]
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # the first draw builds a table of Unicode
@given(lines=st.lists(LINES | st.text(max_size=10), max_size=30))
def test_any_text_is_parsed_without_an_error(lines: list[str]) -> None:
    error = read_error("\n".join(lines))
    if error is not None:
        assert error.type.isidentifier()
        assert error.traceback


@pytest.mark.parametrize(
    "pattern",
    [
        f'{HEADER}\n  File "x", line 1\nValueError: x\n',
        '  + Exception Group Traceback (most recent call last):\n  |   File "x"\n  | E: x\n',
        f"{HEADER}\n",
        "  ",
        "  |   \n",
        "a.",
        "\x1b[",
        "\x1b[0;",
        "\n",
        "E: ",
    ],
)
def test_any_text_is_parsed_in_bounded_time(pattern: str) -> None:
    text = pattern * (2_000_000 // len(pattern))
    began = time.process_time()
    read_error(text)
    assert time.process_time() - began < 0.5
