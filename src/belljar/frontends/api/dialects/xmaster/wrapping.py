"""Wraps the programs of X-Master's clients in the namespace that the original gives them.

A program gets no tools if it names none and nothing that could find one, and it runs unwrapped if it could not even
notice the difference. Most programs print something and end.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

NO_SESSION = "test_id"  # the session id in answers to requests without one
_DYNAMIC = (
    "tools",
    "call_tool",
    "globals",
    "locals",
    "vars",
    "dir",
    "eval",
    "exec",
    "getattr",
    "builtins",
    "import_module",
)


_NAMES = re.compile(rf"\b(?:open|input|current_dir|inform_handler|{'|'.join(_DYNAMIC)})\b")


_SURROUNDINGS = re.compile(
    r"__\w+__|\0|\b(?:import|class|os|sys|exit|quit|breakpoint|SystemExit|KeyboardInterrupt|GeneratorExit"
    rf"|open|input|current_dir|inform_handler|{'|'.join(_DYNAMIC)})\b"
)
#: A frame of such a program; below a frame that is "in" something stand source lines, which only a file has.
_FRAME = re.compile(r'^  File "/work/main\.py", line (\d+(?:, in [^\n]*)?)((?:\n    [^\n]*)*)', re.MULTILINE)


class _Strip(ast.NodeTransformer):
    """Removes docstrings, annotations and typing imports."""

    def visit(self, node: ast.AST) -> Any:
        self.generic_visit(node)
        if isinstance(node, ast.Module | ast.FunctionDef) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:] or [ast.Pass()]
        if isinstance(node, ast.FunctionDef):
            node.returns = None
        if isinstance(node, ast.arg):
            node.annotation = None
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            return ast.copy_location(ast.Assign(targets=[node.target], value=node.value), node)
        return None if isinstance(node, ast.ImportFrom) and node.module == "typing" else node


def _namespace_source() -> str:
    """The source of `guest_namespace`, as short as possible."""
    tree = ast.parse(Path(__file__).with_name("guest_namespace.py").read_text("utf-8"))
    return ast.unparse(ast.fix_missing_locations(_Strip().visit(tree)))


_NAMESPACE = _namespace_source()

#: A single program; `x` is compiled only where it is needed. As short as possible: it is compiled for every run.
_ONE_SHOT_HEAD = f"""\
import os, sys
e = os.dup(2)
os.dup2(1, 2)
m = sys.modules['session_{NO_SESSION}'] = type(sys)('session_{NO_SESSION}')
m.os, m.sys = os, sys
x = {_NAMESPACE!r}
"""
_WITH_NAMES = f"n = {{}}; exec(x, n); m.__dict__.update(n['make_names']('{NO_SESSION}'))"
_ONE_SHOT_MIDDLE = """
try:
    exec(compile("""
_ONE_SHOT_TAIL = """, '<string>', 'exec', 0, True), m.__dict__)
except BaseException as f:
    n = {}
    exec(x, n)
    n['explain'](f, e)
"""

_OPENING = f"""\
import sys
_xmaster = sys.modules['_xmaster'] = type(sys)('_xmaster')
exec({_NAMESPACE!r}, _xmaster.__dict__)
_xmaster.prepare(_session_id)
del _xmaster, _session_id
"""


def wrap_program(code: str, tools: Sequence[str]) -> tuple[str, Sequence[str]]:
    """The code to run for a single program, and which of `tools` it needs."""
    if tools and not re.search(rf"\b(?:{'|'.join((*tools, *_DYNAMIC))})\b", code):
        tools = ()
    if not tools and is_plain(code):
        return code, ()
    wants_names = bool(tools) or _NAMES.search(code) is not None
    head = _ONE_SHOT_HEAD + (_WITH_NAMES if wants_names else "")
    return f"{head}{_ONE_SHOT_MIDDLE}{code!r}{_ONE_SHOT_TAIL}", tools


def open_session(session_id: str) -> str:
    """The first cell of a session."""
    return f"_session_id = {session_id!r}\n{_OPENING}"


def wrap_cell(code: str) -> str:
    """A later cell. One expression: IPython compiles each statement by itself."""
    return f"__import__('_xmaster').run({code!r})"


def is_plain(code: str) -> bool:
    """Whether a program could notice only by its traceback that it runs as `python main.py`.

    It then runs as that, and `read_traceback` does the rest. Without imports and these names it cannot write to
    standard error, exit, or reach the namespace that the original gives it.
    """
    return _SURROUNDINGS.search(code) is None


def read_traceback(stderr: str) -> str:
    """The traceback of a program that ran as /work/main.py, as if it had been the text "<string>"."""

    def rename(found: re.Match[str]) -> str:
        source = "" if ", in " in found[1] else found[2]
        return f'  File "<string>", line {found[1]}{source}'

    return _FRAME.sub(rename, stderr).replace('"/work/main.py"', '"<string>"')  # those within groups, too
