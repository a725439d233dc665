"""Check the source of a restricted program before it runs, and list what is not allowed in it.

Refusing a program before its first statement is best: nothing was printed, nothing is half done, and all problems are
reported together. What the source does not show is refused when it happens (`builtins.py`).

The syntax tree is walked without the `ast` module, whose import takes longer than the walk, and without recursion,
because a hostile program nests as deeply as the parser allows.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from belljar.inside.guest.restricted.rules import Rules

_ONLY_TREE = 0x400  # PyCF_ONLY_AST
_ENCODING = re.compile(rb"^[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)")
_UTF_8 = (b"utf-8", b"utf8", b"ascii", b"us-ascii")
_IMPORT_ERRORS = ("ImportError", "ModuleNotFoundError", "Exception", "BaseException")


class Problem:
    def __init__(self, line: int, text: str) -> None:
        self.line = line
        self.text = text


def declared_encoding(source: bytes) -> Problem | None:
    """Find a declared encoding other than UTF-8: with it the interpreter could read another program than this check."""
    for number, line in enumerate(source.split(b"\n", 2)[:2], 1):
        found = _ENCODING.match(line)
        if found and found[1].lower().replace(b"_", b"-") not in _UTF_8:
            return Problem(number, "only UTF-8 is allowed as the program's encoding: remove the declaration")
    return None


def find_problems(source: bytes, rules: Rules, private: Any, missing: frozenset[str]) -> list[Problem]:
    """Return everything that is not allowed in the source, by line; `missing` are the unavailable built-in functions.

    Raises:
        SyntaxError: the source is not valid Python.
    """
    tree = compile(source, "/work/main.py", "exec", _ONLY_TREE, True)
    walker = _Walker(rules, private, missing)
    walker.walk(tree)
    return sorted(walker.problems(), key=lambda problem: problem.line)


class _Walker:
    """One pass over the tree; what depends on the names that the program defines is decided at its end."""

    def __init__(self, rules: Rules, private: Any, missing: frozenset[str]) -> None:
        self._rules = rules
        self._is_private = private
        self._missing = missing
        self._found: list[Problem] = []
        self._defined: set[str] = set()  # names that the program itself defines
        self._functions: list[tuple[int, str]] = []  # uses of built-in functions that are not available
        self._private: list[tuple[int, str]] = []  # uses of private names, which may not be the program's own

    def walk(self, tree: Any) -> None:
        """Check every node; `guarded` marks imports inside a `try` that handles their failure."""
        waiting = [(tree, False)]
        line = 1
        while waiting:
            node, guarded = waiting.pop()
            line = getattr(node, "lineno", line)
            kind = type(node).__name__
            visit = getattr(self, "_visit_" + kind, None)
            if visit is not None:
                visit(node, line, guarded)
            for field in node._fields:
                value = getattr(node, field, None)
                if isinstance(value, str):
                    if kind != "Constant" and field not in ("attr", "type_comment", "module"):
                        self._check_name(value, line)
                elif isinstance(value, list):
                    inside = guarded or (kind in ("Try", "TryStar") and field == "body" and _expects_import_error(node))
                    waiting += [(each, inside) for each in reversed(value) if hasattr(each, "_fields")]
                elif hasattr(value, "_fields"):
                    waiting.append((value, guarded))

    def problems(self) -> Iterator[Problem]:
        """Return everything that was found; call it after `walk`, when all names of the program are known."""
        yield from self._found
        for line, name in self._functions:
            if name not in self._defined:
                yield Problem(line, self._rules.refuse_function(name))
        for line, name in self._private:
            if name not in self._defined:
                yield Problem(
                    line,
                    f"{name!r} is not available here: names with an underscore are private to the object's class; "
                    "use its public attributes and methods",
                )

    def _complain(self, line: int, text: str | None) -> None:
        if text is not None:
            self._found.append(Problem(line, text))

    def _check_name(self, name: str, line: int) -> None:
        self._complain(line, self._rules.refuse_name(name))

    # ---- one method for each kind of node that is checked

    def _visit_Name(self, node: Any, line: int, guarded: bool) -> None:
        if type(node.ctx).__name__ != "Load":
            self._defined.add(node.id)
        elif node.id in self._missing:
            self._functions.append((line, node.id))

    def _visit_Attribute(self, node: Any, line: int, guarded: bool) -> None:
        if type(node.ctx).__name__ == "Store":
            self._defined.add(node.attr)
        inner = node.value
        if node.attr in ("__name__", "__qualname__") and getattr(inner, "attr", "") == "__class__":
            node.value = inner.value  # allowed, because x.__class__.__name__ is common
        if _names_own_object(inner) and self._is_private(node.attr):
            return
        self._check_attribute(node.attr, line)

    def _check_attribute(self, name: str, line: int) -> None:
        self._complain(line, self._rules.refuse_attribute(name))
        if self._is_private(name):
            self._private.append((line, name))

    def _visit_MatchClass(self, node: Any, line: int, guarded: bool) -> None:
        for name in node.kwd_attrs:
            self._check_attribute(name, line)

    def _visit_Constant(self, node: Any, line: int, guarded: bool) -> None:
        if isinstance(node.value, str) and node.value[:1] == "_" and node.value.isidentifier():
            self._defined.add(node.value)  # as in setattr(self, "_x", 1) or __slots__

    def _visit_Import(self, node: Any, line: int, guarded: bool) -> None:
        for alias in node.names:
            self._check_import(alias.name, line, guarded)

    def _visit_ImportFrom(self, node: Any, line: int, guarded: bool) -> None:
        if node.level:
            self._complain(line, "relative imports are not available here: there is no package around the program")
            return
        names = [f"{node.module}.{alias.name}" for alias in node.names]
        if not all(map(self._rules.may_import, names)):
            self._check_import(node.module, line, guarded)
        for alias in node.names:
            if self._is_private(alias.name):
                self._private.append((line, alias.name))

    def _check_import(self, module: str, line: int, guarded: bool) -> None:
        if not self._rules.may_import(module) and not guarded:
            self._complain(line, self._rules.refuse_import(module))

    def _visit_alias(self, node: Any, line: int, guarded: bool) -> None:
        self._defined.add(node.asname or node.name)

    def _visit_FunctionDef(self, node: Any, line: int, guarded: bool) -> None:
        self._defined.add(node.name)

    _visit_AsyncFunctionDef = _visit_ClassDef = _visit_FunctionDef

    def _visit_arg(self, node: Any, line: int, guarded: bool) -> None:
        self._defined.add(node.arg)

    def _visit_ExceptHandler(self, node: Any, line: int, guarded: bool) -> None:
        self._defined.add(node.name)

    _visit_MatchAs = _visit_MatchStar = _visit_ExceptHandler

    def _visit_Global(self, node: Any, line: int, guarded: bool) -> None:
        for name in node.names:
            self._check_name(name, line)

    _visit_Nonlocal = _visit_Global


def _names_own_object(node: Any) -> bool:
    """Whether the node is `self`, `cls` or `super()`, whose private names belong to the program or its base class."""
    if type(node).__name__ == "Call":
        node = node.func
        return getattr(node, "id", "") == "super"
    return getattr(node, "id", "") in ("self", "cls")


def _expects_import_error(attempt: Any) -> bool:
    """Whether a `try` handles the error of a missing module."""
    for handler in attempt.handlers:
        caught = handler.type
        if caught is None:
            return True
        names = caught.elts if type(caught).__name__ == "Tuple" else [caught]
        if any(getattr(name, "id", "") in _IMPORT_ERRORS for name in names):
            return True
    return False
