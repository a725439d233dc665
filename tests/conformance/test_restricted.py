"""Restricted Python: the policy refuses every known bypass, the jail holds without it, and honest programs run.

The policy and the jail are tested separately. Each escape is a program that prints "reached" once it has bypassed the
policy, and then reads a file of the host. With the policy it never prints that. Without the policy it does, or the escape
would prove nothing, and the jail stops it.
"""

# ruff: noqa: E501  (programs in tables)

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import belljar
from belljar import Restriction, Status

#: The policy is part of the guest, which is the same in every back end, so testing one is enough.
pytestmark = pytest.mark.parametrize("box", ["local"], indirect=True)

REACHED = '\nprint("reached")\n'
#: The next step of an escape without the policy.
PAYLOAD = REACHED + "print(open(CANARY).read())"

ESCAPES = {
    # ---- imports
    "import": "import os as found",
    "import_from": "from os import path\nfound = path.os",
    "import_in_a_function": "def f():\n    import os\n    return os\nfound = f()",
    "import_by_function": "found = __import__('os')",
    "import_builtins": "import builtins\nfound = builtins.open",
    "import_importlib": "import importlib\nfound = importlib.import_module('os')",
    "import_sys_modules": "import sys\nfound = sys.modules['os']",
    "module_of_a_module": "import random\nfound = random._os",
    "public_module_of_a_module": "import statistics\nfound = statistics.sys.modules['os']",
    "module_from_a_module": "from random import _os as found",
    "public_module_from_a_module": "from statistics import sys\nfound = sys.modules['os']",
    "module_through_a_computed_name": "import random\nfound = getattr(random, '_' + 'os')",
    "underscore_made_its_own": "import random\nname = '_os'\nfound = random._os",
    "failed_attribute_keeps_the_module": (
        "import random\ntry:\n    random.nope\nexcept AttributeError as error:\n    found = getattr(error.obj, '_' + 'os')"
    ),
    "spec_of_a_module": "import math\nfound = __spec__ or math.__loader__.load_module('math').__spec__",
    # ---- built-in functions
    "open": "found = open",
    "open_in_a_list": "found = [open][0]",
    "eval": "found = eval('open')",
    "exec": "exec('found = open')",
    "compile": "found = eval(compile('open', 'x', 'eval'))",
    "builtins_name": "found = vars(__builtins__)['open']",
    "builtins_of_globals": "found = vars(globals()['__builtins__'])['open']",
    "builtins_of_locals": "found = vars(locals()['__builtins__'])['open']",
    "builtins_of_vars": "found = vars(vars()['__builtins__'])['open']",
    "self_of_a_function": "found = print.__self__.open",
    "decorator": "@eval\n@(lambda f: 'open')\ndef found(): pass",
    "class_decorator": "@(lambda c: c.__init__.__globals__['__builtins__'].open)\nclass found:\n    def __init__(self): pass",
    "default_argument": "def f(found=open): return found\nfound = f()",
    "comprehension": "found = [eval for _ in 'x'][0]('open')",
    "comprehension_scope": "class A:\n    found = [x for x in [lambda: open]][0]\nfound = A.found()",
    "lambda": "found = (lambda: (lambda: open)())()",
    "unicode_name": "found = 𝘦𝘷𝘢𝘭('open')",
    "unicode_attribute": "def f(): pass\nfound = f.__𝘨𝘭𝘰𝘣𝘢𝘭𝘴__['__builtins__'].open",
    # ---- attribute chains
    "globals_of_a_function": "def f(): pass\nfound = f.__globals__['__builtins__'].open",
    "class_hierarchy": (
        "found = [c for c in ().__class__.__bases__[0].__subclasses__() if c.__name__ == '_wrap_close'][0]"
        ".__init__.__globals__"
    ),
    "class_hierarchy_without_class": (
        "found = [c for c in object.__subclasses__() if c.__name__ == '_wrap_close'][0].__init__.__globals__"
    ),
    "class_hierarchy_by_mro": "found = type([]).__mro__[-1].__subclasses__()",
    "class_hierarchy_by_getattr": (
        "b = '_' * 2\nc = getattr(object, b + 'subclasses' + b)()\n"
        "found = getattr([x for x in c if x.__name__ == '_wrap_close'][0].__init__, b + 'globals' + b)"
    ),
    "getattr_with_a_lying_string": (
        "class S(str):\n    def startswith(self, *a): return False\n    def __getitem__(self, at): return 'x'\n"
        "def f(): pass\nfound = getattr(f, S('__globals__'))['__builtins__'].open"
    ),
    "getattr_in_map": "def f(): pass\nfound = list(map(getattr, [f], ['__glo' + 'bals__']))[0]['__builtins__'].open",
    "getattribute": "def f(): pass\nfound = object.__getattribute__(f, '__glo' + 'bals__')['__builtins__'].open",
    "type_getattribute": "def f(): pass\nfound = type(f).__getattribute__(f, '__globals__')['__builtins__'].open",
    "real_type_by_class": "found = ().__class__.__class__('X', (), {'o': 1}).o",
    "three_argument_type": "found = type('X', (), {'__match_args__': ('x',)})",
    "type_of_type": "found = type(int)('X', (), {'o': 1}).o",
    "metaclass": "class M(type):\n    def f(cls, x): return True",
    "dict_of_a_class": "found = vars(type(print.__self__))",
    "descriptor": "found = type(lambda: 0).__dict__['__globals__'].__get__(lambda: 0)['__builtins__'].open",
    "reduce": "found = ''.__reduce_ex__(2)[0].__globals__['__builtins__']",
    # ---- patterns
    "match_keyword": "def f(): pass\nmatch f:\n    case object(__globals__=g): found = g['__builtins__'].open",
    "match_arguments": (
        "class A:\n    __match_args__ = ('__init__',)\n    def __init__(self): pass\n"
        "match A():\n    case A(i): found = i.__func__.__globals__['__builtins__'].open"
    ),
    # ---- text as names
    "str_format": "def f(): pass\nfound = '{0.__globals__}'.format(f)",
    "str_format_computed": "def f(): pass\nb = '_' * 2\nfound = ('{0.' + b + 'globals' + b + '}').format(f)",
    "str_format_unbound": "def f(): pass\nfound = str.format('{0.__globals__[f]}', f)",
    "str_format_map": "def f(): pass\nfound = '{f.__globals__}'.format_map({'f': f})",
    "str_format_in_a_spec": "def f(): pass\nwidth = 9\nfound = '{0:{1.__globals__[width]}}'.format('x', f)",
    "f_string": "def f(): pass\nfound = f'{f.__globals__}'",
    # ---- frames
    "generator_frame": "g = (x for x in [1])\nfound = g.gi_frame.f_globals['__builtins__'].open",
    "generator_frame_by_getattr": "g = (x for x in [1])\nfound = getattr(g, 'gi_' + 'frame').f_builtins['open']",
    "generator_code": "g = (x for x in [1])\nfound = type(lambda: 0)(g.gi_code, {})",
    "coroutine_frame": "async def f(): pass\nc = f()\nfound = c.cr_frame.f_builtins['open']\nc.close()",
    "async_generator_frame": "async def f(): yield\nfound = f().ag_frame.f_builtins['open']",
    "traceback_frame": (
        "try:\n    1 / 0\nexcept Exception as error:\n    found = error.__traceback__.tb_frame.f_builtins['open']"
    ),
    "traceback_frame_of_exit": (
        "class A:\n    def __enter__(self): return self\n    def __exit__(self, kind, error, trace):\n"
        "        self.found = getattr(trace, 'tb_frame').f_builtins['open']\n        return True\n"
        "with A() as a:\n    1 / 0\nfound = a.found"
    ),
    "frame_of_sys": "import sys\nfound = sys._getframe().f_builtins['open']",
    "code_object": "def f(): pass\nfound = type(f)(f.__code__, f.__globals__)",
}

#: Escapes through modules that a caller has allowed in addition to the default ones.
ESCAPES_BY_MODULE = {
    "attrgetter": ("operator", "import operator\ndef f(): pass\nfound = operator.attrgetter('__globals__')(f)"),
    "attrgetter_dotted": (
        "operator",
        "from operator import attrgetter\ndef f(): pass\nfound = attrgetter('__init__.__class__', '__globals__')(f)",
    ),
    "methodcaller": (
        "operator",
        "import operator\nfound = operator.methodcaller('__subclasses__')(object)",
    ),
    "update_wrapper": (
        "functools",
        "import functools\ngot = []\nclass A:\n    def __setattr__(self, name, value): got.append(value)\n"
        "functools.update_wrapper(A(), functools.wraps, assigned=('__globals__',), updated=())\n"
        "found = got[0]['__builtins__']",
    ),
    "formatter": (
        "string",
        "import string\nfound = string.Formatter().get_field('0.__class__', ('',), {})[0]",
    ),
    "type_hints": (
        "typing",
        "import typing\nclass A:\n    x: 'object.__subclasses__'\nfound = typing.get_type_hints(A)['x']",
    ),
    "os_of_numpy": ("numpy", "import numpy.f2py\nfound = numpy.f2py.os"),
}

WORK = {
    "arithmetic": ("print(sum(x**2 for x in range(10)))", "285\n"),
    "default_modules": (
        "import collections, datetime, itertools, math, queue, random, re, stat, statistics, time, unicodedata\n"
        "print(statistics.mean([1, 2, 3]), math.floor(2.5), re.sub('a', 'b', 'aa'), collections.Counter('aab')['a'],\n"
        "      datetime.date(2020, 1, 2).isoformat(), next(itertools.count(3)), unicodedata.name('a'),\n"
        "      time.time() > 0, stat.S_ISDIR(0), random.Random(1).randint(1, 1), queue.Queue().empty())",
        "2 2 bb 2 2020-01-02 3 LATIN SMALL LETTER A True False 1 True\n",
    ),
    "submodule_and_star": (
        "import collections.abc as abc\nfrom collections.abc import Mapping\nfrom math import *\n"
        "print(issubclass(dict, Mapping), abc.Mapping is Mapping, sqrt(4))",
        "True True 2.0\n",
    ),
    "classes": (
        "class Point:\n    __slots__ = ('x', '_y')\n    def __init__(self, x): self.x, self._y = x, 1\n"
        "    def __repr__(self): return f'{self.__class__.__name__}({self.x}, {self._y})'\n"
        "    def __eq__(self, other): return self.x == other.x and self._y == other._y\n"
        "    def __add__(self, other): return type(self)(self.x + other.x)\n"
        "class Deep(Point):\n    def __init__(self, x): super().__init__(x); self.__hidden = 3\n"
        "    __slots__ = ('__hidden', )\n    def peek(self): return self.__hidden\n"
        "print(Point(1) + Point(2), Point(1) == Point(1), Deep(4).peek(), type(Deep(1)).__name__, isinstance(Deep, type))",
        "Point(3, 1) True 3 Deep True\n",
    ),
    "closures_and_decorators": (
        "def twice(f):\n    def inner(*a, **k):\n        '''Doc.'''\n        return 2 * f(*a, **k)\n    inner.__name__ = f.__name__\n"
        "    return inner\n@twice\ndef three(): return 3\nprint(three(), three.__name__, three.__doc__)",
        "6 three Doc.\n",
    ),
    "generators_and_with": (
        "class Gate:\n    def __enter__(self): return 1\n    def __exit__(self, *raised): return True\n"
        "with Gate() as g:\n    1 / 0\ndef count():\n    got = yield g\n    yield got\nc = count()\nprint(next(c), c.send(5))",
        "1 5\n",
    ),
    "patterns": (
        "class P:\n    def __init__(self): self.x = 4\nmatch P():\n    case P(x=found): print(found)\n"
        "match {'a': [1, 2]}:\n    case {'a': [first, *rest], **others}: print(first, rest, others)",
        "4\n1 [2] {}\n",
    ),
    "formatting": (
        "w = 8\nprint('{:>{w}.2f}|{!r}|{x.real}'.format(3.14159, 'a', w=w, x=5), f'{w:03d}', '%s' % w)",
        "    3.14|'a'|5 008 8\n",
    ),
    "class_name_in_a_template": ("print('{0.__class__.__name__}'.format(1))", "int\n"),
    "named_tuples": (
        "from collections import namedtuple\nP = namedtuple('P', 'x y')\nprint(P(1, 2)._replace(x=3), P._fields, P(1, 2)._asdict())",
        "P(x=3, y=2) ('x', 'y') {'x': 1, 'y': 2}\n",
    ),
    "getattr_and_vars": (
        "class A:\n    def __init__(self): self.x = 1; self._y = 2\na = A()\nsetattr(a, 'z', 3)\n"
        "print(getattr(a, 'x'), getattr(a, '_' + 'y'), getattr(a, 'nope', None), hasattr(a, '__dict__'), vars(a))\n"
        "import math\nprint(getattr(math, 'pi') > 3, 'pi' in dir(math))",
        "1 2 None False {'x': 1, '_y': 2, 'z': 3}\nTrue True\n",
    ),
    "missing_module_is_expected": (
        "try:\n    import numpy as np\nexcept ImportError:\n    np = None\nprint(np)",
        "None\n",
    ),
    "own_function_of_a_missing_name": ("def compile(x): return x + 1\nopen = compile\nprint(compile(1), open(2))", "2 3\n"),
    "caught_refusal": (
        "try:\n    getattr((), '__cla' + 'ss__')\nexcept InterpreterError as error:\n    print('caught')",
        "caught\n",
    ),
    "main_guard": ("def main(): print(__name__)\nif __name__ == '__main__': main()", "__main__\n"),
    "future": ("from __future__ import annotations\ndef f(x: int | None) -> Nope: return x\nprint(f(1))", "1\n"),
    "types": (
        "print(type(1) is int, type(int) is type, type(1), type(1) == type(2), isinstance(int, type), [type[int]] != [])",
        "True True <class 'int'> True True True\n",
    ),
    "asynchronous": (
        "async def f(): return 1\nc = f()\ntry:\n    c.send(None)\nexcept StopIteration as done:\n    print(done.value)",
        "1\n",
    ),
    "exit": ("print(1)\nexit()\nprint(2)", "1\n"),
    "final_answer": ("print(1)\nfinal_answer(6 * 7)\nprint(2)", "1\n42\n"),
    "final_answer_is_not_caught": ("try:\n    final_answer([1])\nexcept Exception:\n    print('no')", "[1]\n"),
    "unpacking_and_walrus": ("a, *b = (n := [1, 2, 3])\nprint(a, b, len(n), {**{'k': 1}}, [*b, *n])", "1 [2, 3] 3 {'k': 1} [2, 3, 1, 2, 3]\n"),
    "sorted_with_key": ("print(sorted('bca', key=lambda c: -ord(c)), max([[1], [2]], key=lambda x: x[0]))", "['c', 'b', 'a'] [2]\n"),
    "underscore_names": ("for _ in range(2): _total = _\n__x = _total\nprint(_total, __x)", "1 1\n"),
}  # fmt: skip

MESSAGES = [
    pytest.param(
        "x = 1\nimport os\n", ["line 2", "'os'", "Allowed: collections, datetime"], id="import_names_the_list"
    ),
    pytest.param("open('a.txt')", ["open()", "print the results"], id="open"),
    pytest.param("eval('1')", ["eval()", "dict"], id="eval"),
    pytest.param("input()", ["input()", "assign the value"], id="input"),
    pytest.param("().__class__", ["'__class__'", "type(x)"], id="class"),
    pytest.param("x = 1\nx.__dict__", ["vars(x)"], id="dict"),
    pytest.param("import os\nopen('a')\neval('1')", ["line 1", "line 2", "line 3"], id="all_problems_at_once"),
    pytest.param("getattr(1, '__class' + '__')", ["'__class__'", "line 1", "getattr(1,"], id="while_it_runs"),
    pytest.param("# coding: utf-7\nprint(1)", ["UTF-8"], id="encoding"),
]


@pytest.fixture(scope="module")
def canary() -> Iterator[tuple[Path, str]]:
    """A world-readable file on the host, and its content."""
    secret = secrets.token_hex(16)
    path = Path(f"/var/tmp/belljar-canary-{secrets.token_hex(4)}")
    path.write_text(secret)
    path.chmod(0o644)
    yield path, secret
    path.unlink()


ALL_ESCAPES: list[Any] = [
    *(pytest.param(code, (), id=name) for name, code in ESCAPES.items()),
    *(pytest.param(code, (module,), id=name) for name, (module, code) in ESCAPES_BY_MODULE.items()),
]


@pytest.mark.parametrize(("code", "modules"), ALL_ESCAPES)
def test_policy_refuses_escape(box: belljar.Sandbox, code: str, modules: tuple[str, ...]) -> None:
    rules = Restriction(imports=(*Restriction().imports, *modules))
    outcome = box.run(code + REACHED, restrict=rules)
    assert outcome.status is Status.DENIED, (outcome.stdout, outcome.stderr)
    assert "reached" not in outcome.stdout
    assert outcome.error is not None
    assert outcome.error.type == "InterpreterError"


@pytest.mark.parametrize(("code", "modules"), ALL_ESCAPES)
def test_jail_holds_without_the_policy(
    box: belljar.Sandbox, canary: tuple[Path, str], code: str, modules: tuple[str, ...]
) -> None:
    path, secret = canary
    outcome = box.run(code + PAYLOAD.replace("CANARY", repr(str(path))))
    assert secret not in outcome.stdout + outcome.stderr
    assert (outcome.status, outcome.stdout[-8:]) == (Status.FAILED, "reached\n"), outcome.stderr


@pytest.mark.parametrize(("code", "printed"), [pytest.param(*case, id=name) for name, case in WORK.items()])
def test_honest_program_runs(box: belljar.Sandbox, code: str, printed: str) -> None:
    outcome = box.run(code, restrict={}, memory_mb=20)
    assert (outcome.status, outcome.stdout, outcome.stderr) == (Status.OK, printed, "")


@pytest.mark.parametrize(("code", "messages"), MESSAGES)
def test_a_refusal_suggests_a_fix(box: belljar.Sandbox, code: str, messages: list[str]) -> None:
    outcome = box.run(code, restrict={})
    assert outcome.status is Status.DENIED
    assert outcome.exit_code == 1
    for text in messages:
        assert text in outcome.stderr
    assert "belljar" not in outcome.stderr  # no frame of Belljar


@pytest.mark.parametrize("hidden", ["vars(random)['_os']", "dir(random).index('_os')", "vars(object)['__reduce__']"])
def test_hidden_names_do_not_exist(box: belljar.Sandbox, hidden: str) -> None:
    code = f"import random\ntry:\n    {hidden}\nexcept (KeyError, ValueError):\n    print('not there')"
    assert box.run(code, restrict={}).stdout == "not there\n"
    assert box.run(code).stdout == ""


def test_nothing_runs_before_the_whole_program_is_checked(box: belljar.Sandbox) -> None:
    assert box.run("print(1)\nimport os", restrict={}).stdout == ""


def test_programs_own_failure_is_not_a_refusal(box: belljar.Sandbox) -> None:
    outcome = box.run("import math\ndef f(x):\n    return getattr(math, 'sqrt')(x)\nf(-1)", restrict={})
    assert outcome.status is Status.FAILED
    assert outcome.error is not None
    assert (outcome.error.type, outcome.error.message) == ("ValueError", "math domain error")
    assert "belljar" not in outcome.stderr


def test_syntax_error_is_a_failure(box: belljar.Sandbox) -> None:
    outcome = box.run("def f(:\n", restrict={})
    assert outcome.status is Status.FAILED
    assert outcome.error is not None
    assert outcome.error.type == "SyntaxError"


def test_long_output_is_cut_and_marked(box: belljar.Sandbox) -> None:
    outcome = box.run("for i in range(100): print('0123456789')", restrict={"max_print_length": 25})
    assert outcome.status is Status.OK
    assert outcome.stdout.startswith("0123456789\n0123456789\n012\n[cut: ")
    assert outcome.stdout.count("[cut:") == 1
    assert outcome.stdout_cut
    whole = box.run("print('x' * 24)", restrict={"max_print_length": 25})
    assert (whole.stdout, whole.stdout_cut) == ("x" * 24 + "\n", False)


def test_input_is_available(box: belljar.Sandbox) -> None:
    assert box.run("print(input())", stdin="hi", restrict={}).stdout == "hi\n"


def test_limits_hold(box: belljar.Sandbox) -> None:
    assert box.run("x = [0] * 10**8", restrict={}, memory_mb=20).status is Status.OUT_OF_MEMORY
    assert box.run("while True: pass", restrict={}, limits={"cpu_seconds": 0.3}).status is Status.TIMED_OUT


def test_numpy_fits_into_20_megabytes(box: belljar.Sandbox) -> None:
    code = (
        "import numpy as np, numpy.linalg as la\nfrom numpy.random import default_rng\n"
        "a = np.arange(9.0).reshape(3, 3)\nprint(la.matrix_rank(a), np.sum(a), default_rng(1).integers(1, 2), np.pi > 3)"
    )
    outcome = box.run(code, restrict={"imports": ["numpy"]}, memory_mb=20)
    assert (outcome.status, outcome.stdout) == (Status.OK, "2 36.0 1 True\n"), outcome.stderr


def test_only_a_part_of_a_package_can_be_allowed(box: belljar.Sandbox) -> None:
    rules = {"imports": ["numpy.linalg"]}
    allowed = box.run("import numpy.linalg\nfrom numpy.linalg import norm\nprint(norm([3, 4]))", restrict=rules)
    assert (allowed.status, allowed.stdout) == (Status.OK, "5.0\n"), allowed.stderr
    assert box.run("import numpy.linalg\nprint(numpy.array)", restrict=rules).status is Status.DENIED
    assert box.run("import numpy", restrict=rules).status is Status.DENIED


def test_pictures_are_shown(box: belljar.Sandbox) -> None:
    code = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()\nprint('done')"
    outcome = box.run(code, restrict={"imports": ["matplotlib"]})
    assert (outcome.status, outcome.stdout) == (Status.OK, "done\n"), outcome.stderr
    assert [display.mime for display in outcome.displays] == ["image/png"]


def test_given_tools_can_be_called(box: belljar.Sandbox) -> None:
    def double(x: int) -> int:
        """Twice as much."""
        return 2 * x

    outcome = box.run(
        "import tools\nfrom tools import double\nprint(double(4), tools.double(5))", tools=[double], restrict={}
    )
    assert (outcome.status, outcome.stdout) == (Status.OK, "8 10\n"), outcome.stderr
    assert box.run("import tools", restrict={}).status is Status.DENIED


def test_every_import_can_be_allowed(box: belljar.Sandbox) -> None:
    outcome = box.run("import os, json\nprint(json.dumps(os.getcwd()))", restrict={"imports": ["*"]})
    assert (outcome.status, outcome.stdout) == (Status.OK, '"/work"\n')


def test_next_program_is_not_restricted(box: belljar.Sandbox, narrow_box: belljar.Sandbox) -> None:
    assert narrow_box.run("import os", restrict={}).status is Status.DENIED
    assert narrow_box.run("import os\nprint('{0.__class__}'.format(1))").ok
