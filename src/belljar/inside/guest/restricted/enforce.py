"""Restricted Python: a program may import only listed modules, and has no files, no `eval`, no interpreter internals.

The interpreter itself still runs /work/main.py. Before that, the source is checked (`source.py`), and `__main__` gets
its own built-in functions (`builtins.py`). Both only give good error messages; a program that gets around them is still
in the same jail as every other.

Single bytes over a pipe report to the host that the policy ended the program, or that printed output was cut. A program
that gets around the policy can forge them, and then deceives only its own caller.
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
_OUR_FILES = "<belljar "  # prefix of the file names of Belljar's modules in tracebacks
_load: Callable[[str], Any] = globals().get("load", __import__)  # set by `program.load`
_report = -1


def prepare(argument: dict[str, Any], descriptors: list[int]) -> None:
    """Check the program and install the rules; does not return if the program is refused."""
    global _report
    (_report,) = descriptors
    try:
        _prepare(argument)
    except BaseException:  # noqa: BLE001  (the program must not run without its rules)
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


_refusal: list[type[BaseException]] = []  # InterpreterError, once its module is loaded


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
    """Format the problems as a traceback that points to the first one, because readers know that format."""
    first, *others = problems
    text = [
        "Traceback (most recent call last):",
        f'  File "{_PROGRAM}", line {first.line}, in <module>',
        f"    {_line(lines, first.line)}",
        f"InterpreterError: line {first.line}: {first.text}.",
    ]
    text += [f"line {each.line}: {_line(lines, each.line)}: {each.text}." for each in others[:_PROBLEMS_MAX]]
    if len(others) > _PROBLEMS_MAX:
        text.append(f"… and {len(others) - _PROBLEMS_MAX} more.")
    text.append("Nothing was run.\n")
    return "\n".join(text)


def _line(lines: list[str], number: int) -> str:
    return lines[number - 1].strip()[:200] if 0 < number <= len(lines) else ""


def _notify(what: bytes) -> None:
    try:
        os.write(_report, what)
    except OSError:
        pass  # the host has closed the pipe


def _leave(code: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _final_answer(answer: Any = None) -> NoReturn:
    """Print the result and end the program, as in smolagents."""
    if answer is not None:
        print(answer)
    raise SystemExit(0)


def _excepthook(kind: type[BaseException], error: BaseException, trace: Any) -> None:
    """Print a traceback without Belljar's frames, and report to the host if a refusal ended the program."""
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
    """Standard output with a limit: it prints a note after `characters_max` characters and drops the rest."""

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
                f"{text[: self._left]}\n[cut: output after the first {self._characters_max:,} characters is "
                "dropped; print less]\n"
            )
        self._left = 0
        return len(text)
