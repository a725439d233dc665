"""Outcomes as the evaluators of MultiPL-E report them: {status, exit_code, stdout, stderr}.

Each language is a row of a table: how long its evaluator lets a program run, and which text in which stream means which
status. Some rows look arbitrary because the original evaluators are, and published scores depend on them. Where an
evaluator was broken (it crashed, or could never report OK), the row has what was intended.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from belljar.contract.execution import Outcome, Status

#: Other names of languages, as in MultiPL-E's own driver.
_OTHER_NAMES = {
    "c++": "cpp",
    "coq": "v",
    "d": "dlang",
    "go_test.go": "go",
    "jl": "julia",
    "js": "javascript",
    "m": "matlab",
    "ml": "ocaml",
    "notypes.py": "python",
    "py": "python",
    "rb": "ruby",
    "rkt": "racket",
    "rs": "rust",
}

_ANY, _OUT, _ERR = ("stdout", "stderr"), ("stdout",), ("stderr",)


_GO_TEST = re.compile(r"^func (Test\w*)\(\w+ \*testing\.T\)", re.MULTILINE)
_GO_MAIN = re.compile(r"^func main\(\)", re.MULTILINE)
_GO_PACKAGE = re.compile(r"^package \w+", re.MULTILINE)


def _run_go_tests(code: str) -> str:
    """`go test` for a compiler that only builds programs: a test file gets a main that runs its tests."""
    tests = _GO_TEST.findall(code)
    if not tests or _GO_MAIN.search(code):
        return code
    listed = ", ".join(f'{{"{name}", {name}}}' for name in tests)
    matches_all = "func(pattern, name string) (bool, error) { return true, nil }"
    main = f"func main() {{ testing.Main({matches_all}, []testing.InternalTest{{{listed}}}, nil, nil) }}"
    return f"{_GO_PACKAGE.sub('package main', code, count=1)}\n{main}\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluator:
    """How one language is judged. Rules are (streams, text, status): the first whose text is in a stream decides."""

    run_seconds: int = 15
    if_failed: tuple[tuple[tuple[str, ...], str, str], ...] = ()  # if the exit code is not 0
    even_if_ok: tuple[tuple[tuple[str, ...], str, str], ...] = ()  # whatever the exit code
    by_exit_code: Mapping[int, str] | None = None
    otherwise: str = "Exception"  # failed, and no rule matches
    if_silent: str = ""  # … and nothing on stderr; empty: as `otherwise`
    ok_needs_silence: bool = False  # anything on stderr is a failure
    not_compiled: str = "SyntaxError"
    if_not_compiled: tuple[tuple[tuple[str, ...], str, str], ...] = ()
    compile_timeout: str = "SyntaxError"
    compile_timeout_text: str = ""
    timeout: str = "Timeout"
    timeout_exit_code: int | None = -1
    failure_exit_code: int | None = None  # reported instead of the real one
    failure_instead_of_0: int = 0  # reported for a failure with exit code 0: clients go by the exit code
    language: str = ""  # whose toolchain is used; empty: that of the same name
    prepare: Callable[[str], str] = str  # adapts the source to the toolchain
    env: tuple[tuple[str, str], ...] = ()


_NODE = (
    (_ERR, "ERR_ASSERTION", "AssertionError"),
    (_ERR, "SyntaxError", "SyntaxError"),
    (_ERR, "ReferenceError", "ReferenceError"),
)

EVALUATORS: Mapping[str, Evaluator] = {
    "clj": Evaluator(ok_needs_silence=True, timeout="Exception"),
    "cpp": Evaluator(),
    "cs": Evaluator(
        run_seconds=5,
        even_if_ok=(
            (_ERR, "System.Diagnostics.DefaultTraceListener.Fail", "Exception"),
            (_ERR, "Unhandled Exception", "Exception"),
        ),
        failure_instead_of_0=1,
        prepare="#define DEBUG\n#line 1\n{}".format,
        env=(("MONO_TRACE_LISTENER", "Console.Error"),),
    ),
    "dfy": Evaluator(
        by_exit_code={2: "SyntaxError", 3: "CompilationError", 4: "VerificationError"}, compile_timeout="Timeout"
    ),
    "dlang": Evaluator(if_failed=((_ERR, "Error:", "SyntaxError"),), compile_timeout="Timeout", language="dunit"),
    "elixir": Evaluator(
        run_seconds=5,
        if_failed=(
            (_ANY, "Assertion with == failed", "AssertionError"),
            (_ANY, "SyntaxError", "SyntaxError"),
        ),
    ),
    "fs": Evaluator(not_compiled="Exception", compile_timeout="Timeout"),
    "go": Evaluator(
        run_seconds=30,
        even_if_ok=(
            (_OUT, "[setup failed]", "SyntaxError"),
            (_OUT, "[build failed]", "SyntaxError"),
            (_OUT, "FAIL", "Exception"),
        ),
        compile_timeout="Timeout",
        timeout_exit_code=None,
        prepare=_run_go_tests,
    ),
    "hs": Evaluator(not_compiled="Exception", compile_timeout="Timeout"),
    "java": Evaluator(),
    "javascript": Evaluator(run_seconds=5, if_failed=_NODE),
    "julia": Evaluator(run_seconds=5, otherwise="SyntaxError", if_silent="Exception"),
    "lean": Evaluator(
        run_seconds=5,
        if_failed=((_ANY, "error: tactic 'rfl' failed", "AssertionError"),),
        if_not_compiled=((_ANY, "error: tactic 'rfl' failed", "AssertionError"),),
        otherwise="SyntaxError",
        compile_timeout="Timeout",
        failure_exit_code=-1,
    ),
    "lua": Evaluator(),
    "luau": Evaluator(
        by_exit_code={2: "SyntaxError"},  # of Belljar's runner, which has no analyser
        not_compiled="TypeError",
        if_not_compiled=((_ERR, "SyntaxError", "SyntaxError"),),
        compile_timeout="Timeout",
    ),
    "matlab": Evaluator(
        run_seconds=30,
        if_failed=((_ERR, "syntax error", "SyntaxError"), (_ERR, "parse error", "SyntaxError")),
        ok_needs_silence=True,
        failure_exit_code=1,
        prepare="1; {}\ntest();".format,  # a file that begins with a function would define only that function
    ),
    "ocaml": Evaluator(
        if_failed=(
            (_ERR, "Assert_failure", "AssertionError"),
            (_ERR, ": Assertion failed", "AssertionError"),  # the same, of a program that is compiled
            (_ERR, "Syntax error", "SyntaxError"),
        ),
        if_not_compiled=((_ERR, "Syntax error", "SyntaxError"),),
        not_compiled="Exception",
        compile_timeout="Timeout",
    ),
    "php": Evaluator(if_failed=((_ANY, "Parse error: ", "SyntaxError"),), timeout="Exception"),
    "pl": Evaluator(even_if_ok=((_ANY, "ERROR", "Exception"),)),
    "python": Evaluator(if_failed=((_ERR, "SyntaxError", "SyntaxError"),)),
    "racket": Evaluator(ok_needs_silence=True, if_failed=((_ERR, "read-syntax", "SyntaxError"),), timeout="Exception"),
    "r": Evaluator(run_seconds=5, if_failed=((_ANY, "unexpected", "SyntaxError"),), if_silent="AssertionError"),
    "ruby": Evaluator(run_seconds=5, otherwise="SyntaxError", if_silent="Exception"),
    "rust": Evaluator(run_seconds=5, compile_timeout="Timeout", compile_timeout_text="Compiler timeout"),
    "scala": Evaluator(ok_needs_silence=True),
    "sh": Evaluator(if_failed=((_ERR, "syntax error", "SyntaxError"),)),
    "swift": Evaluator(run_seconds=5, compile_timeout="Timeout"),
    "ts": Evaluator(if_failed=_NODE),
    "v": Evaluator(
        run_seconds=5,
        if_failed=((_ANY, "Unable to unify", "AssertionError"),),
        if_not_compiled=((_ANY, "Unable to unify", "AssertionError"),),
        otherwise="SyntaxError",
        compile_timeout="Timeout",
    ),
}

_UNKNOWN = Evaluator()


def find_evaluator(lang: str) -> tuple[str, Evaluator]:
    """The language of that name and its evaluator; a language that MultiPL-E lacks gets the default rules."""
    name = _OTHER_NAMES.get(lang.lower(), lang.lower())
    evaluator = EVALUATORS.get(name, _UNKNOWN)
    return evaluator.language or name, evaluator


def evaluate(evaluator: Evaluator, outcome: Outcome) -> dict[str, Any]:
    """What the evaluator would print about this outcome."""
    compiled = outcome.compilation
    never_ran = outcome.exit_code is None and outcome.signal is None  # else a check after the run found it
    if outcome.status is Status.COMPILE_FAILED and compiled is not None and never_ran:
        streams = {"stdout": compiled.stdout, "stderr": compiled.stderr}
        if compiled.status is Status.TIMED_OUT:
            text = evaluator.compile_timeout_text
            texts = {"stdout": text, "stderr": text} if text else streams
            return {"status": evaluator.compile_timeout, "exit_code": -1, **texts}
        exit_code = 1 if compiled.exit_code is None else compiled.exit_code
        word = (evaluator.by_exit_code or {}).get(exit_code)
        word = word or _first(evaluator.if_not_compiled, streams) or evaluator.not_compiled
        return {"status": word, "exit_code": _shown(evaluator, exit_code), **streams}
    streams = {"stdout": outcome.stdout, "stderr": outcome.stderr}
    if outcome.status is Status.TIMED_OUT:
        return {"status": evaluator.timeout, "exit_code": evaluator.timeout_exit_code, **streams}
    exit_code = _exit_code(outcome)
    word = _judge(evaluator, exit_code, streams)
    if word != "OK":
        exit_code = _shown(evaluator, exit_code)
    return {"status": word, "exit_code": exit_code, **streams}


def _judge(evaluator: Evaluator, exit_code: int, streams: Mapping[str, str]) -> str:
    found = _first(evaluator.even_if_ok, streams)
    if found:
        return found
    is_silent = not streams["stderr"].strip()
    if exit_code == 0 and (is_silent or not evaluator.ok_needs_silence):
        return "OK"
    found = (evaluator.by_exit_code or {}).get(exit_code) or _first(evaluator.if_failed, streams)
    return found or (evaluator.if_silent if is_silent and evaluator.if_silent else evaluator.otherwise)


def _first(rules: tuple[tuple[tuple[str, ...], str, str], ...], streams: Mapping[str, str]) -> str | None:
    for names, text, word in rules:
        if any(text in streams[name] for name in names):
            return word
    return None


def _exit_code(outcome: Outcome) -> int:
    """As in Python's subprocess: negative for a signal."""
    if outcome.exit_code is not None:
        return outcome.exit_code
    name, _, offset = (outcome.signal or "SIGKILL").partition("+")
    return -(signal.Signals[name] + int(offset or 0))


def _shown(evaluator: Evaluator, exit_code: int) -> int:
    if evaluator.failure_exit_code is not None:
        return evaluator.failure_exit_code
    return exit_code or evaluator.failure_instead_of_0
