"""Restricted Python: a program imports what is on a list, and finds no files, no `eval`, no way into the interpreter.

The interpreter itself still runs /work/main.py. Before that, the source is looked through (`restricted_source.py`), and
`__main__` gets built-in functions of its own (`restricted_builtins.py`). Both only make good errors; whoever gets
around them is in the same jail as everybody else.

The host is told in single bytes, over a pipe: that the policy ended the program, and that printing was cut. A program
that gets around the policy can forge these, and then deceives its own caller only.
"""

from __future__ import annotations

import io
import os
import sys
import traceback
from typing import Any, Callable, NoReturn

REFUSED, CUT = b"R", b"C"
_PROBLEMS_MAX = 10
_PROGRAM = "/work/main.py"
_OUR_FILES = "<belljar "  # how the names of all our files begin, as the interpreter shows them
_load: Callable[[str], Any] = globals().get("load", __import__)  # `program.load` puts it there
_report = -1


def prepare(argument: dict[str, Any], descriptors: list[int]) -> None:
    """Look the program through and put the rules in place; does not return if the program is refused."""
    global _report
    (_report,) = descriptors
    try:
        _prepare(argument)
    except BaseException:  # noqa: BLE001  (nothing may run without its rules)
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(70)


def _prepare(argument: dict[str, Any]) -> None:
    rules_module, source_module, builtins_module = (
        _load(f"restricted.{name}") for name in ("rules", "source", "builtins")
    )
    rules = rules_module.Rules(argument["imports"])
    missing = frozenset(rules_module.ADVICE_FOR_FUNCTIONS) - {"__import__"}
    if argument["has_input"]:
        missing -= {"input"}
    with open(_PROGRAM, "rb") as file:
        source = file.read()
    _check_source(source, rules, source_module, rules_module.is_private, missing)
    sys.stdout = sys.__stdout__ = _Printed(sys.stdout, argument["print_characters"])  # type: ignore[misc]
    sys.excepthook = _excepthook
    main = sys.modules["__main__"]
    made = builtins_module.Builtins(rules, rules_module.is_private, missing, main).build()
    _refusal.append(builtins_module.InterpreterError)
    made["final_answer"] = _final_answer
    vars(main)["__builtins__"] = made
    builtins_module.guard_str_format(rules)


_refusal: list[type[BaseException]] = []  # the class of our refusals, once it is loaded


def _check_source(source: bytes, rules: Any, source_module: Any, is_private: Any, missing: frozenset[str]) -> None:
    encoding = source_module.declared_encoding(source)
    try:
        problems = [encoding] if encoding else source_module.find_problems(source, rules, is_private, missing)
    except SyntaxError as error:
        traceback.print_exception(type(error), error, None)
        _leave(1)
    if problems:
        _notify(REFUSED)
        sys.stderr.write(_describe(problems, source.decode("utf-8", "replace").splitlines()))
        _leave(1)


def _describe(problems: list[Any], lines: list[str]) -> str:
    """As a traceback, which is what readers of such output know to read; the first problem is where it points."""
    first, *others = problems
    said = [
        "Traceback (most recent call last):",
        f'  File "{_PROGRAM}", line {first.line}, in <module>',
        f"    {_line(lines, first.line)}",
        f"InterpreterError: line {first.line}: {first.text}.",
    ]
    said += [f"line {each.line}: {_line(lines, each.line)}: {each.text}." for each in others[:_PROBLEMS_MAX]]
    if len(others) > _PROBLEMS_MAX:
        said.append(f"… and {len(others) - _PROBLEMS_MAX} more.")
    said.append("Nothing was run.\n")
    return "\n".join(said)


def _line(lines: list[str], number: int) -> str:
    return lines[number - 1].strip()[:200] if 0 < number <= len(lines) else ""


def _notify(what: bytes) -> None:
    try:
        os.write(_report, what)
    except OSError:
        pass  # nobody listens any more


def _leave(code: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _final_answer(answer: Any = None) -> NoReturn:
    """As in smolagents: the program is done, and this is its result."""
    if answer is not None:
        print(answer)
    raise SystemExit(0)


def _excepthook(kind: type[BaseException], error: BaseException, trace: Any) -> None:
    """The interpreter's own, without our frames; and a refusal that ends the program is reported."""
    if isinstance(error, tuple(_refusal)):
        _notify(REFUSED)
        error.__cause__ = error.__context__ = None
    seen: set[int] = set()
    each: BaseException | None = error
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        each.__traceback__ = _without_ours(each.__traceback__)
        each = each.__cause__ or each.__context__
    sys.__excepthook__(kind, error, error.__traceback__)


def _without_ours(trace: Any) -> Any:
    while trace is not None and _is_ours(trace):
        trace = trace.tb_next
    here = trace
    while here is not None:
        while here.tb_next is not None and _is_ours(here.tb_next):
            here.tb_next = here.tb_next.tb_next
        here = here.tb_next
    return trace


def _is_ours(trace: Any) -> bool:
    return bool(trace.tb_frame.f_code.co_filename.startswith(_OUR_FILES))


class _Printed(io.TextIOWrapper):
    """Standard output that takes so many characters, says that it cut the rest, and drops it."""

    def __init__(self, before: Any, characters_max: int) -> None:
        self._left = self._characters_max = characters_max
        self._was_cut = False
        encoding, errors = before.encoding, before.errors
        super().__init__(before.detach(), encoding=encoding, errors=errors, line_buffering=True)

    def write(self, text: str) -> int:
        if len(text) <= self._left:
            self._left -= len(text)
            return super().write(text)
        if not self._was_cut:
            self._was_cut = True
            _notify(CUT)
            super().write(
                f"{text[: self._left]}\n[cut: what is printed after the first {self._characters_max:,} characters is "
                "dropped; print less]\n"
            )
        self._left = 0
        return len(text)
