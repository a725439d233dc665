"""A program behaves as under `python main.py`: small programs, run both ways and compared.

Every file below `programs/` is one case, and so is every entry of SOURCES, for sources that an editor would damage.
GIVEN holds the input of the programs. Exit code, signal, standard output and standard error must be the same, except
for the names of directories.

Where they differ on purpose, DIFFERS says how and why; `docs/fidelity.md` describes it for users. Where they should be
and are not yet, AWAITING says what is missing, and NOT_IN_GVISOR lists what another kernel cannot do; an entry that has
become wrong fails the run, so all three tables stay true.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import belljar
from belljar.contract.errors import InvalidExecution

PROGRAMS = Path(__file__).parent / "programs"


# ---------------------------------------------------------------------------------------------------------------- input

_LOUD = "class Loud:\n    def __del__(self):\n        print('del in', __name__)\n\n\nheld = Loud()\n"

FILES: dict[str, str | bytes] = {
    "helper.py": "_private = 1\n\n\ndef greet(name):\n    return f'hello {name} from {__name__}'\n",
    "package/__init__.py": "",
    "package/data.txt": "packaged",
    "package/sibling_user.py": "from . import inner\nfrom .inner.deep import where\n\nvalue = where()\n",
    "package/inner/__init__.py": "",
    "package/inner/deep.py": (
        "def where():\n    return __name__, __package__\n\n\ndef run():\n    raise LookupError('deep inside')\n"
    ),
    "library/in_library.py": "value = 'found by PYTHONPATH'\n",
    "spread/part.py": "value = 'no __init__ needed'\n",
    "colorsys.py": "mine = True\n",
    "uses_main.py": "def look():\n    import __main__\n\n    return __main__.x\n",
    "circle_a.py": "import circle_b\n\nvalue = circle_b.value + 1\n",
    "circle_b.py": "import circle_a\n\nvalue = 1\n",
    "broken_circle_a.py": "from broken_circle_b import b\n\na = 1\n",
    "broken_circle_b.py": "from broken_circle_a import a\n\nb = 1\n",
    "bad_syntax.py": "x = 1\ndef broken(:\n    pass\n",
    "with_null.py": b"x = 1\0\n",
    "leaves_at_import.py": "import sys\n\nsys.exit(6)\n",
    "fails_at_import.py": "def run():\n    raise OSError('at import')\n\n\nrun()\n",
    "warned.py": (
        "import warnings\n\n\ndef run():\n    warnings.warn('from a module', DeprecationWarning)\n"
        "    warnings.warn('to the caller', DeprecationWarning, stacklevel=2)\n"
    ),
    "latin1_module.py": "# coding: latin-1\nword = 'über'\n".encode("latin-1"),
    "invalid_utf8.py": b"word = '\xfcber'\n",
    "holds_loud.py": _LOUD,
    "holds_loud_too.py": _LOUD,
}


def files(*names: str) -> dict[str, Any]:
    """The entries of FILES with these names or in these directories."""
    return {"files": {path: text for path, text in FILES.items() if path in names or path.split("/")[0] in names}}


def shadows(*names: str) -> dict[str, Any]:
    return {"files": {f"{name}.py": "mine = True\n" for name in names}}


GIVEN: dict[str, dict[str, Any]] = {
    "argv/argparse": {"args": ["1", "2", "--times", "3"]},
    "argv/argparse_error": {"args": ["x"]},
    "argv/odd_values": {"args": ["", "-", "--", "ü✓", "a\nb", "*", "$HOME", "'\"", "x" * 1000]},
    "argv/orig": {"args": ["a"]},
    "argv/plain": {"args": ["one", "two words", "--flag=3"]},
    "end/del_in_module": files("holds_loud.py"),
    "end/del_in_two_modules": files("holds_loud.py", "holds_loud_too.py"),
    "env/all": {"env": {"GIVEN": "1"}},
    "env/given": {"env": {"GIVEN": "value with spaces", "ÜMLAUT": "ä"}},
    "env/language": {"env": {"LC_ALL": "C.UTF-8"}},
    "env/python_dont_write_bytecode": {"env": {"PYTHONDONTWRITEBYTECODE": "1"}, **files("helper.py")},
    "env/python_hash_seed": {"env": {"PYTHONHASHSEED": "0"}},
    "env/python_io_encoding": {"env": {"PYTHONIOENCODING": "latin-1"}},
    "env/python_path": {"env": {"PYTHONPATH": "library"}, **files("library")},
    "env/python_variables_are_read": {"env": {"PYTHONOPTIMIZE": "1"}},
    "env/python_warnings": {"env": {"PYTHONWARNINGS": "error"}},
    "env/reaches_children": {"env": {"GIVEN": "1"}},
    "env/replaces_defaults": {"env": {"HOME": "/tmp", "PATH": "/usr/bin:/bin", "LANG": "C", "USER": "me"}},
    "env/time_zone": {"env": {"TZ": "Asia/Tokyo"}},
    "exit/in_import": files("leaves_at_import.py"),
    "import/bytecode_is_written": files("helper.py"),
    "import/circular": files("circle_a.py", "circle_b.py"),
    "import/circular_error": files("broken_circle_a.py", "broken_circle_b.py"),
    "import/lib_util": files("helper.py"),
    "import/main_from_module": files("uses_main.py"),
    "import/module": files("helper.py"),
    "import/namespace_package": files("spread"),
    "import/package": files("package"),
    "import/relative_in_main": files("helper.py"),
    "import/relative_in_package": files("package"),
    "import/resources": files("package"),
    "import/shadows_every_warm_module": shadows("random", "selectors", "socket", "struct"),
    "import/shadows_stdlib": shadows("colorsys"),
    "import/shadows_what_is_loaded": shadows("json"),
    "import/star": files("helper.py"),
    "import/time_flags": files("helper.py"),
    "place/file_given": {"files": {"data/input.csv": "a,b\n", "raw.bin": b"\x00\xff"}},
    "source/invalid_utf8_module": files("invalid_utf8.py"),
    "source/latin1_module": files("latin1_module.py"),
    "stdin/binary": {"stdin": bytes(range(256))},
    "stdin/by_name": {"stdin": "given\n"},
    "stdin/fileinput": {"stdin": "a\nb\n"},
    "stdin/getpass": {"stdin": "hunter2\n"},
    "stdin/input": {"stdin": "one\ntwo"},
    "stdin/invalid_utf8": {"stdin": b"caf\xe9\nnext\n"},
    "stdin/iteration": {"stdin": "a\nb\n\nlast"},
    "stdin/large": {"stdin": b"0123456789abcdef" * 100_000},
    "stdin/partly_read": {"stdin": "x\n" * 200_000},
    "stdin/readline_then_child": {"stdin": "first\nsecond\nthird\n"},
    "stdin/select": {"stdin": "line\n"},
    "stdin/universal_newlines": {"stdin": "a\r\nb\rc\n"},
    "traceback/error_in_import": files("fails_at_import.py"),
    "traceback/error_in_package": files("package"),
    "traceback/syntax_error_in_import": files("bad_syntax.py"),
    "traceback/syntax_error_null_byte_in_module": files("with_null.py"),
    "traceback/warning_in_module": files("warned.py"),
    "workload/competitive": {"stdin": "3\n10 20 30\n"},
    "workload/numpy_shadowed": shadows("numpy"),
}

SOURCES: dict[str, str] = {
    "source/addition_bomb": f"x = 1{' + 1' * 100_000}\nprint(x)\n",
    "source/bom": "\ufeffprint('after a byte order mark', __file__)\n",
    "source/bracket_bomb": f"x = {'(' * 1000}{')' * 1000}\n",
    "source/cr_only": "print('old mac')\rprint('second')\rraise ValueError('line three')\r",
    "source/crlf": "print('one')\r\ntext = '''a\r\nb'''\r\nprint(repr(text))\r\nraise ValueError('line five')\r\n",
    "source/form_feed": "def f():\n    return 1\n\x0c\nprint(f())\n",
    "source/large": f"x = 1\n{'# padding of a large program' * 20_000}\nraise ValueError('far down')\n",
    "source/many_constants": f"values = [{', '.join(map(str, range(20_000)))}]\nprint(len(values), sum(values))\n",
    "source/minus_bomb": f"x = {'-' * 100_000}1\n",
    "source/no_newline_at_end": "print('no newline')",
}


# ---------------------------------------------------------------------------------------------------- known differences


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Fields that differ on purpose, as text or as a pattern; all other fields must be the same."""

    because: str
    here: dict[str, Any]
    natively: dict[str, Any] = field(default_factory=dict)


#: Their output describes the system, not the interpreter.
OF_THE_SYSTEM = ("place/platform", "stdlib/ssl")


def anything(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.DOTALL)


_LINES = "standard output is flushed at each line, so that it can be streamed and a killed program shows what it did"
_FLAGS = "an interpreter reads PYTHON… variables when it starts, and this one had started; children do read them"
_WARM = "the interpreter was started ahead, and some of the standard library is loaded"
_KIND = "the last finalizers run while the interpreter is still whole, so they can do more"
_KEPT = "only what the program made is let go of at the end, not what it hung on modules that were there before"
_PLACE = "the jail is a place of its own"

DIFFERS: dict[str, Difference] = {
    # ---- how output is buffered
    "stdout/line_buffering": Difference(
        because=_LINES, natively={"stdout": "False True\n"}, here={"stdout": "True True\n"}
    ),
    "stdout/lost_at_os_exit": Difference(because=_LINES, natively={"stdout": ""}, here={"stdout": "a whole line\n"}),
    "stdout/lost_at_signal": Difference(because=_LINES, natively={"stdout": ""}, here={"stdout": "a whole line\n"}),
    "stdout/mixed_order_unflushed": Difference(
        because=_LINES,
        natively={"stdout": "descriptor second\ntext first\n"},
        here={"stdout": "text first\ndescriptor second\n"},
    ),
    "stdout/buffer_writes": Difference(because=_LINES, here={"stdout": "raw \ufffd\ufffd bytes\ntext\nraw again\n"}),
    "processes/fork_unflushed": Difference(
        because=_LINES,
        natively={"stdout": "printed once, before the fork\n" * 2},
        here={"stdout": "printed once, before the fork\n"},
    ),
    **{
        f"stdout/{name}": Difference(
            because=f"{_LINES}; a stream that cannot be written to therefore fails at the print, not only at the end",
            here={
                "stderr": re.compile(
                    r'Traceback \(most recent call last\):\n  File "/work/main.py", line \d, in <module>\n'
                    r"    print\(.*\)\n(    [~^]+\n)?"
                    rf"\w+Error: \[Errno {number}\] .*\n"
                    rf"(Exception ignored .*stdout.*\n\w+Error: \[Errno {number}\] .*\n)?"
                )
            },
        )
        for name, number in (("broken_pipe", 32), ("descriptor_closed", 9), ("to_full_device", 28))
    },
    # ---- options of the interpreter
    "env/python_dont_write_bytecode": Difference(because=_FLAGS, here={"stdout": "True\n"}),
    "env/python_hash_seed": Difference(because=_FLAGS, here={"stdout": anything(r"-?\d+ \[.*\]\n")}),
    "env/python_io_encoding": Difference(because=_FLAGS, here={"stdout": "utf-8 ü\n"}),
    "env/python_path": Difference(
        because=_FLAGS, here={"exit_code": 1, "stdout": "", "stderr": anything(".*No module named 'in_library'\n")}
    ),
    "env/python_variables_are_read": Difference(because=_FLAGS, here={"stdout": "1 0 0 False\n1\n\n"}),
    "env/python_warnings": Difference(
        because=_FLAGS, here={"exit_code": 0, "stdout": "[]\n", "stderr": anything(".*UserWarning: told to fail\n.*")}
    ),
    "place/command_line": Difference(
        because=_WARM,
        natively={"stdout": "['/env/bin/python', 'main.py', '']\n"},
        here={"stdout": anything(r"\[.*\]\n")},
    ),
    "place/environ_in_proc": Difference(because=_WARM, here={"stdout": anything(r"\[.*b'PATH'.*\]\n")}),
    # ---- modules that are already loaded
    "main/modules_that_are_loaded": Difference(because=_WARM, here={"stdout": anything(r"\[.*'functools', .*\]\n")}),
    "main/modules_of_third_parties": Difference(
        because="matplotlib finds its back end by this name; it is the only module of ours that can be found",
        here={"stdout": anything(r"\['_belljar_displays'(, '_distutils_hack')?\]\n")},
    ),
    "main/classes_of_ours": Difference(
        because="what the process ran before the program stays in memory; nothing of it holds a secret",
        natively={"stdout": "[]\n"},
        here={"stdout": "['belljar']\n"},
    ),
    "main/gc_frozen": Difference(because=_WARM, natively={"stdout": "0\n"}, here={"stdout": anything(r"\d{4,}\n")}),
    "main/system_exit_type": Difference(
        because="the exit code is learned from this attribute, when the interpreter reads it",
        here={"stdout": anything(r"property exception code\n.*")},
    ),
    # ---- the end of the program
    "end/del_imports": Difference(because=_KIND, here={"stdout": "[1]\n", "stderr": ""}),
    "end/del_imports_something_new": Difference(
        because=_KIND, here={"stderr": anything(r".*    import colorsys\nImportError: .*")}
    ),
    "end/del_opens_file": Difference(because=_KIND, here={"stdout": "written\n", "stderr": ""}),
    "end/del_system_exit": Difference(
        because=_KIND, here={"stderr": anything(r".*    sys.exit\(9\)\nSystemExit: 9\n")}
    ),
    "end/is_finalizing": Difference(
        because=_KIND,
        natively={"stdout": "atexit False\ndel True\n"},
        here={"stdout": "atexit False\ndel False\n"},
    ),
    "traceback/in_del_at_exit": Difference(
        because=_KIND, here={"stderr": anything(r".*    raise ValueError\(.*ValueError: in __del__ at exit\n")}
    ),
    "end/del_kept_by_builtins": Difference(because=_KEPT, here={"stdout": "end of main\n"}),
    "end/del_kept_by_warm_module": Difference(because=_KEPT, here={"stdout": "end of main\n"}),
    "end/unclosed_file_on_stdlib_module": Difference(because=_KEPT, here={"stdout": ""}),
    "end/resource_tracker": Difference(
        because="whatever outlives the program is ended with it, and this warning comes from such a process",
        here={"stderr": anything(r"(.*leaked shared_memory objects.*)?")},
    ),
    "processes/left_behind_output": Difference(
        because="whatever outlives the program is ended with it",
        natively={"stdout": "the program ends\nlate\n"},
        here={"stdout": "the program ends\n"},
    ),
    "exit/interrupt_caught_in_exec": Difference(
        because="an oversight of CPython that we do not repeat: an interrupt that was caught still kills the program",
        here={"exit_code": 0, "signal": None},
    ),
    # ---- directories
    "place/host_name": Difference(because=_PLACE, here={"stdout": "belljar\nTrue\n"}),
    "place/uid": Difference(because=_PLACE, here={"stdout": anything(r"\d{4,} True True\n")}),
    "place/pty": Difference(
        because="there are no pseudo-terminals: none of a jail's walls has been proved against them",
        here={"exit_code": 1, "stdout": "", "stderr": anything(".*OSError: out of pty devices\n")},
    ),
    "place/psutil": Difference(
        because="/proc shows the processes of the program and nothing of the machine",
        here={"exit_code": 1, "stdout": "", "stderr": anything(".*'/proc/stat'\n")},
    ),
    "place/stack_limit_raised": Difference(
        because="limits may be lowered, and raised up to what the jail gives",
        here={"exit_code": 1, "stdout": "", "stderr": anything(".*ValueError: not allowed to raise maximum limit\n")},
    ),
}

_WORDS = "before Python 3.12 our sys.exit words the error of a wrong call in another way"

AWAITING: dict[str, str] = {
    "exit/empty_tuple": "before Python 3.12 an empty tuple, or one of one, is unpacked by our sys.exit",
    "exit/keyword_argument": _WORDS,
    "exit/too_many_arguments": _WORDS,
}

_PIPES = "pipes have no mode in gVisor, so a program cannot open those of the host by name"
_PROC = "gVisor's /proc differs"
_IMAGE = "a guest sees /etc of its image, without a user or host names of its own"

#: Programs that behave in another way inside gVisor, whose kernel is not Linux.
NOT_IN_GVISOR: dict[str, str] = {
    "main/signal_mask_in_kernel": f"{_PROC}: it does not show signal masks",
    "place/kernel_objects": "gVisor has no pidfd_open",
    "place/loopback_ipv6_and_unix": "this gVisor binds no unix socket to an abstract name",
    "place/network": _IMAGE,
    "place/psutil": f"{_PROC}: it has /proc/stat, so this is as natively",
    "place/stack_limit_raised": "gVisor does not enforce this limit, so this is as natively",
    "place/user_database": _IMAGE,
    "processes/shell_redirects": _PIPES,
    "stdin/by_name": _PIPES,
    "stdout/closed_at_end": "the last steps flush standard output, which is closed; in a local jail they are skipped",
    "stdout/reopened_by_name": _PIPES,
}


# ---------------------------------------------------------------------------------------------------------------- cases


def _programs() -> dict[str, str]:
    found = {str(path.relative_to(PROGRAMS).with_suffix("")): path for path in sorted(PROGRAMS.rglob("*.py"))}
    return {name: path.read_bytes().decode() for name, path in found.items()} | SOURCES


def _cases() -> list[Any]:
    return [
        pytest.param(
            name,
            code,
            id=name,
            marks=[pytest.mark.xfail(reason=AWAITING[name], strict=True)] if name in AWAITING else [],
        )
        for name, code in sorted(_programs().items())
    ]


@pytest.mark.parametrize(("name", "code"), _cases())
def test_a_program_behaves_as_under_python(
    request: pytest.FixtureRequest,
    name: str,
    code: str,
    box: belljar.Sandbox,
    natively: Callable[..., Any],
    seen: Callable[..., Any],
) -> None:
    if box.settings.container.runtime == "runsc" and name in NOT_IN_GVISOR:
        request.applymarker(pytest.mark.xfail(reason=NOT_IN_GVISOR[name], strict=True))
    if box.settings.backend == "container" and name in OF_THE_SYSTEM:
        pytest.skip("an image has system libraries and commands of its own")
    given = GIVEN.get(name, {})
    root = box.settings.state_dir.resolve() / "environments" / "default"
    native, here = natively(code, root, **given)._asdict(), seen(box.run(code, timeout=60, **given))._asdict()
    difference = DIFFERS.get(name)
    if difference is not None:
        assert native != here, "no longer different: remove it from DIFFERS and from docs/fidelity.md"
        for ran, expected in ((native, difference.natively), (here, difference.here)):
            for key, value in expected.items():
                assert _matches(ran[key], value), f"{key}: {ran[key]!r} is not {value!r}"
        for key in difference.here:
            native.pop(key), here.pop(key)
    assert here == native


def _matches(seen: object, expected: object) -> bool:
    if isinstance(expected, re.Pattern):
        return isinstance(seen, str) and expected.fullmatch(seen) is not None
    return seen == expected


def test_tables_name_programs_that_exist() -> None:
    assert not {*GIVEN, *DIFFERS, *AWAITING, *NOT_IN_GVISOR} - _programs().keys()


def test_every_theme_has_its_programs() -> None:
    themes = {name.split("/")[0] for name in _programs()}
    assert themes >= {"print", "stdin", "argv", "env", "exit", "traceback", "source", "main", "import", "pickle"}
    assert themes >= {"processes", "signals", "threads", "asyncio", "end", "stdout", "place", "stdlib", "workload"}


# ------------------------------------------------------------------------------------------------ beyond a pair of runs


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("import random; print(random.random())", id="random"),
        pytest.param("import os; print(os.urandom(8))", id="urandom"),
        pytest.param("import secrets; print(secrets.token_hex(8))", id="secrets"),
        pytest.param("import uuid; print(uuid.uuid4(), uuid.uuid1())", id="uuid"),
        pytest.param("import tempfile; print(tempfile.mkdtemp())", id="tempfile"),
        pytest.param("import ssl; print(ssl.RAND_bytes(8))", id="ssl"),
        pytest.param("import numpy, random; print(random.random())", id="random_beside_numpy"),
        pytest.param("import numpy; print(numpy.random.rand())", id="numpy_global"),
        pytest.param("import numpy; print(numpy.random.normal())", id="numpy_global_normal"),
        pytest.param("import numpy; print(numpy.random.default_rng().random())", id="numpy_generator"),
        pytest.param("import pandas, random, uuid; print(random.getrandbits(64), uuid.uuid4())", id="beside_pandas"),
    ],
)
def test_randomness_differs_between_runs(box: belljar.Sandbox, code: str) -> None:
    outcomes = list(box.run_many([code] * 6))
    assert all(outcome.ok for outcome in outcomes), outcomes[0].stderr
    assert len({outcome.stdout for outcome in outcomes}) == 6


def test_a_seed_gives_the_usual_numbers(box: belljar.Sandbox) -> None:
    """Belljar seeds numpy's generator in place for each run."""
    draws = "generator.rand(), generator.normal(), generator.randint(1000)"
    code = (
        "import numpy\nnumpy.random.seed(7)\n"
        f"generator = numpy.random\nours = {draws}\ngenerator = numpy.random.RandomState(7)\nprint(ours == ({draws}))"
    )
    assert box.run(code).stdout == "True\n"


def test_text_hashes_are_randomised_but_shared_by_the_runs_of_one_warm_process(box: belljar.Sandbox) -> None:
    """As documented; natively they differ between runs."""
    assert len({outcome.stdout for outcome in box.run_many(["print(hash('text'))"] * 6)}) == 1


def test_one_run_leaves_nothing_for_the_next(box: belljar.Sandbox) -> None:
    spoil = """
import builtins, os, sys
open("left", "w").close(), open("/tmp/left", "w").close(), open("/dev/shm/left", "w").close()
builtins.left = sys.left = True
os.environ["LEFT"] = "1"
sys.path.insert(0, "/left")
"""
    look = """
import builtins, os, sys
print(os.listdir("."), os.listdir("/tmp"), os.listdir("/dev/shm"))
print(hasattr(builtins, "left"), hasattr(sys, "left"), "LEFT" in os.environ, "/left" in sys.path)
"""
    outcomes = list(box.run_many([spoil, look] * 10, max_in_flight=1))
    assert {outcome.stdout for outcome in outcomes[1::2]} == {"['main.py'] [] []\nFalse False False False\n"}


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("print(1)\0", id="null_byte"),
        pytest.param("x = '\udc80'", id="lone_surrogate"),
        pytest.param(" \n\t\n", id="blank"),
    ],
)
def test_a_source_that_is_not_text_is_refused(box: belljar.Sandbox, code: str) -> None:
    """As documented; natively the first two raise SyntaxError, and the third does nothing."""
    with pytest.raises(InvalidExecution):
        box.run(code)
