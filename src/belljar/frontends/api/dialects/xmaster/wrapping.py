"""The programs that X-Master's clients send, as they are run here: with what the original puts around them.

Where it is cheap to know that a program cannot call tools, because it names none and nothing that could find one, it
is not given any; and one that could not even tell runs as it is. Most programs print something and end.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

NOBODY = "test_id"  # what a request without a session is said to be
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
    """Takes out what only readers and checkers of a file need."""

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
    """What runs before a program, as short as it can be."""
    tree = ast.parse(Path(__file__).with_name("guest_namespace.py").read_text("utf-8"))
    return ast.unparse(ast.fix_missing_locations(_Strip().visit(tree)))


_NAMESPACE = _namespace_source()

#: A program of its own; `x` is compiled only where it is needed. As short as it can be: it is compiled for every run.
_ONE_SHOT_HEAD = f"""\
import os, sys
e = os.dup(2)
os.dup2(1, 2)
m = sys.modules['session_{NOBODY}'] = type(sys)('session_{NOBODY}')
m.os, m.sys = os, sys
x = {_NAMESPACE!r}
"""
_WITH_NAMES = f"n = {{}}; exec(x, n); m.__dict__.update(n['make_names']('{NOBODY}'))"
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
    """A program of its own as it is to be run, and which of `tools` it needs."""
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
    """Whether a program can tell its surroundings from those of `python main.py` by nothing but its traceback.

    It then runs as that, and `read_traceback` does the rest. With no import and none of these words it has no way to
    write to standard error, to exit, or to reach what the original puts around it.
    """
    return _SURROUNDINGS.search(code) is None


def read_traceback(stderr: str) -> str:
    """The traceback of a program that ran as /work/main.py, as if it had been the text "<string>"."""

    def rename(found: re.Match[str]) -> str:
        source = "" if ", in " in found[1] else found[2]
        return f'  File "<string>", line {found[1]}{source}'

    return _FRAME.sub(rename, stderr).replace('"/work/main.py"', '"<string>"')  # those within groups, too
