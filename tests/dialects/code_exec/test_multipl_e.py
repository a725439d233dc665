"""MultiPL-E's status words for each language; no toolchain is needed."""

from __future__ import annotations

from typing import Any

import pytest

from belljar.contract.execution import Compilation, Outcome, Status, Usage
from belljar.frontends.api.dialects.code_exec.multipl_e import EVALUATORS, evaluate, find_evaluator

ALL = [
    "clj",
    "cpp",
    "cs",
    "dfy",
    "dlang",
    "elixir",
    "fs",
    "go",
    "hs",
    "java",
    "javascript",
    "julia",
    "lean",
    "lua",
    "luau",
    "matlab",
    "ocaml",
    "php",
    "pl",
    "python",
    "racket",
    "r",
    "ruby",
    "rust",
    "scala",
    "sh",
    "swift",
    "ts",
    "v",
]


def outcome(
    exit_code: int | None = 0,
    stdout: str = "",
    stderr: str = "",
    *,
    signal: str | None = None,
    status: Status | None = None,
    compilation: Compilation | None = None,
) -> Outcome:
    judged = status or (Status.CRASHED if signal else Status.OK if exit_code == 0 else Status.FAILED)
    return Outcome(
        id="x_1",
        language="any",
        status=judged,
        exit_code=exit_code,
        signal=signal,
        stdout=stdout,
        stderr=stderr,
        stdout_cut=False,
        stderr_cut=False,
        error=None,
        displays=(),
        artifacts=(),
        usage=Usage(),
        compilation=compilation,
    )


def not_compiled(stderr: str = "error", exit_code: int | None = 1, status: Status = Status.FAILED) -> Outcome:
    compilation = Compilation(status=status, exit_code=exit_code, stdout="", stderr=stderr, wall_seconds=1.0)
    return outcome(None, status=Status.COMPILE_FAILED, compilation=compilation)


def timed_out() -> Outcome:
    return outcome(None, "half", signal="SIGKILL", status=Status.TIMED_OUT)


def judge(lang: str, seen: Outcome) -> dict[str, Any]:
    return evaluate(find_evaluator(lang)[1], seen)


def test_every_language_of_the_original_has_an_evaluator() -> None:
    assert sorted(EVALUATORS) == sorted(ALL)


@pytest.mark.parametrize("lang", ALL)
def test_good_program_is_ok(lang: str) -> None:
    assert judge(lang, outcome(0, "1\n")) == {"status": "OK", "exit_code": 0, "stdout": "1\n", "stderr": ""}


#: Status and exit code of a timeout where they are not Timeout and -1.
TIMEOUTS = {"clj": ("Exception", -1), "php": ("Exception", -1), "racket": ("Exception", -1), "go": ("Timeout", None)}


@pytest.mark.parametrize("lang", ALL)
def test_timeout(lang: str) -> None:
    reply = judge(lang, timed_out())
    assert (reply["status"], reply["exit_code"]) == TIMEOUTS.get(lang, ("Timeout", -1))
    assert reply["stdout"] == "half"


SECONDS = {
    **dict.fromkeys(ALL, 15),
    **dict.fromkeys(("cs", "elixir", "javascript", "julia", "lean", "r", "ruby", "rust", "swift", "v"), 5),
    **dict.fromkeys(("go", "matlab"), 30),
}


@pytest.mark.parametrize("lang", ALL)
def test_time_limits(lang: str) -> None:
    assert EVALUATORS[lang].run_seconds == SECONDS[lang]


@pytest.mark.parametrize(
    ("lang", "seen", "status", "exit_code"),
    [
        pytest.param("clj", outcome(0, stderr="FAIL in (t)"), "Exception", 0, id="clj_stderr"),
        pytest.param("cpp", outcome(None, signal="SIGABRT"), "Exception", -6, id="cpp_abort"),
        pytest.param("cpp", not_compiled(), "SyntaxError", 1, id="cpp_compile"),
        pytest.param("cpp", not_compiled("", None, Status.TIMED_OUT), "SyntaxError", -1, id="cpp_compile_timeout"),
        pytest.param(
            # clients count by the exit code, and Mono's is 0 after a failed assertion
            "cs",
            outcome(0, stderr="at System.Diagnostics.DefaultTraceListener.Fail"),
            "Exception",
            1,
            id="cs_assert",
        ),
        pytest.param("cs", outcome(1, stderr="Unhandled Exception:\n"), "Exception", 1, id="cs_exception"),
        pytest.param("cs", not_compiled(), "SyntaxError", 1, id="cs_compile"),
        pytest.param("dfy", not_compiled("", 2), "SyntaxError", 2, id="dfy_parse"),
        pytest.param("dfy", not_compiled("", 3), "CompilationError", 3, id="dfy_compile"),
        pytest.param("dfy", not_compiled("", 4), "VerificationError", 4, id="dfy_proof"),
        pytest.param("dfy", outcome(4), "VerificationError", 4, id="dfy_proof_in_one_step"),
        pytest.param("dfy", outcome(1), "Exception", 1, id="dfy_run"),
        pytest.param("dlang", not_compiled("main.d(1): Error: no"), "SyntaxError", 1, id="dlang_compile"),
        pytest.param("dlang", outcome(1, stderr="core.exception.AssertError"), "Exception", 1, id="dlang_assert"),
        pytest.param(
            "elixir", outcome(2, "Assertion with == failed"), "AssertionError", 2, id="elixir_assertion_on_stdout"
        ),
        pytest.param("elixir", outcome(1, stderr="** (SyntaxError)"), "SyntaxError", 1, id="elixir_syntax"),
        pytest.param("elixir", outcome(1, stderr="** (RuntimeError)"), "Exception", 1, id="elixir_runtime"),
        pytest.param("fs", not_compiled(), "Exception", 1, id="fs_compile"),
        pytest.param("go", outcome(1, "--- FAIL: TestX"), "Exception", 1, id="go_fail"),
        pytest.param("go", outcome(0, "FAIL"), "Exception", 0, id="go_fail_with_0"),
        pytest.param("go", not_compiled("", 2), "SyntaxError", 2, id="go_compile"),
        pytest.param("go", outcome(1, "x [build failed]"), "SyntaxError", 1, id="go_build"),
        pytest.param("hs", outcome(1, stderr="main: error"), "Exception", 1, id="hs_run"),
        pytest.param("java", not_compiled(), "SyntaxError", 1, id="java_compile"),
        pytest.param("java", outcome(1, stderr="AssertionError"), "Exception", 1, id="java_assert"),
        pytest.param("javascript", outcome(1, stderr="ERR_ASSERTION"), "AssertionError", 1, id="js_assertion"),
        pytest.param("javascript", outcome(1, stderr="SyntaxError: x"), "SyntaxError", 1, id="js_syntax"),
        pytest.param("javascript", outcome(1, stderr="ReferenceError: x"), "ReferenceError", 1, id="js_reference"),
        pytest.param("javascript", outcome(1, stderr="TypeError: x"), "Exception", 1, id="js_type"),
        pytest.param("javascript", outcome(0, stderr="SyntaxError"), "OK", 0, id="js_only_says_so"),
        pytest.param("julia", outcome(1, stderr="ERROR"), "SyntaxError", 1, id="julia_stderr"),
        pytest.param("julia", outcome(1), "Exception", 1, id="julia_silent"),
        pytest.param("lean", outcome(1, "error: tactic 'rfl' failed"), "AssertionError", -1, id="lean_rfl"),
        pytest.param("lean", outcome(1, "error: expected"), "SyntaxError", -1, id="lean_syntax"),
        pytest.param("luau", not_compiled("SyntaxError: x"), "SyntaxError", 1, id="luau_syntax"),
        pytest.param("luau", not_compiled("TypeError: x"), "TypeError", 1, id="luau_type"),
        pytest.param("luau", outcome(1), "Exception", 1, id="luau_run"),
        pytest.param("luau", outcome(2), "SyntaxError", 2, id="luau_parse"),
        pytest.param("matlab", outcome(0, stderr="\n"), "OK", 0, id="matlab_newline"),
        pytest.param("matlab", outcome(0, stderr="error: x"), "Exception", 1, id="matlab_error"),
        pytest.param("matlab", outcome(7, stderr="syntax error near"), "SyntaxError", 1, id="matlab_syntax"),
        pytest.param("ocaml", outcome(2, stderr="Assert_failure"), "AssertionError", 2, id="ocaml_assert"),
        pytest.param(
            "ocaml",
            outcome(2, stderr='File "main.ml", line 1, characters 9-15: Assertion failed'),
            "AssertionError",
            2,
            id="ocaml_assert_compiled",
        ),
        pytest.param("ocaml", outcome(2, stderr='Failure("Assertion failed")'), "Exception", 2, id="ocaml_failwith"),
        pytest.param("ocaml", outcome(2, stderr="Error: Syntax error"), "SyntaxError", 2, id="ocaml_syntax"),
        pytest.param("ocaml", not_compiled("Error: Syntax error", 2), "SyntaxError", 2, id="ocaml_syntax_compiled"),
        pytest.param("ocaml", not_compiled("Error: type", 2), "Exception", 2, id="ocaml_type"),
        pytest.param("php", outcome(255, "PHP Parse error:  x"), "SyntaxError", 255, id="php_parse_on_stdout"),
        pytest.param("php", outcome(255, stderr="Parse error: x"), "SyntaxError", 255, id="php_parse_on_stderr"),
        pytest.param("php", outcome(0, "Parse error: none"), "OK", 0, id="php_only_says_so"),
        pytest.param("php", outcome(255, "Fatal error"), "Exception", 255, id="php_fatal"),
        pytest.param("pl", outcome(0, "ERROR"), "Exception", 0, id="pl_error"),
        pytest.param("python", outcome(1, stderr="SyntaxError: x"), "SyntaxError", 1, id="python_syntax"),
        pytest.param("python", outcome(1, "SyntaxError", "x"), "Exception", 1, id="python_says_so_on_stdout"),
        pytest.param("python", outcome(None, signal="SIGSEGV"), "Exception", -11, id="python_signal"),
        pytest.param("python", outcome(None, status=Status.OUT_OF_MEMORY), "Exception", -9, id="python_memory"),
        pytest.param("python", outcome(None, signal="SIGRTMIN+3"), "Exception", -37, id="python_real_time_signal"),
        pytest.param("racket", outcome(0, stderr="FAILURE"), "Exception", 0, id="racket_rackunit"),
        pytest.param("racket", outcome(1, stderr="read-syntax: x"), "SyntaxError", 1, id="racket_syntax"),
        pytest.param("r", outcome(1, stderr="Error: unexpected symbol"), "SyntaxError", 1, id="r_syntax"),
        pytest.param("r", outcome(1), "AssertionError", 1, id="r_silent"),
        pytest.param("r", outcome(1, stderr="Error in f"), "Exception", 1, id="r_error"),
        pytest.param("ruby", outcome(1, stderr="x"), "SyntaxError", 1, id="ruby_stderr"),
        pytest.param("ruby", outcome(1, "x"), "Exception", 1, id="ruby_silent"),
        pytest.param("rust", not_compiled(), "SyntaxError", 1, id="rust_compile"),
        pytest.param("rust", not_compiled("", None, Status.TIMED_OUT), "Timeout", -1, id="rust_compile_timeout"),
        pytest.param("rust", outcome(101), "Exception", 101, id="rust_panic"),
        pytest.param("scala", outcome(0, stderr="warning"), "Exception", 0, id="scala_stderr"),
        pytest.param("scala", not_compiled("", None, Status.TIMED_OUT), "SyntaxError", -1, id="scala_compile_timeout"),
        pytest.param("sh", outcome(2, stderr="syntax error near"), "SyntaxError", 2, id="sh_syntax"),
        pytest.param("sh", outcome(1), "Exception", 1, id="sh_run"),
        pytest.param("swift", not_compiled("", None, Status.TIMED_OUT), "Timeout", -1, id="swift_compile_timeout"),
        pytest.param("swift", outcome(None, signal="SIGILL"), "Exception", -4, id="swift_trap"),
        pytest.param("ts", not_compiled(), "SyntaxError", 1, id="ts_compile"),
        pytest.param("ts", outcome(1, stderr="ERR_ASSERTION"), "AssertionError", 1, id="ts_assertion"),
        pytest.param("v", outcome(1, stderr="Unable to unify"), "AssertionError", 1, id="coq_unify"),
        pytest.param("v", not_compiled("Unable to unify"), "AssertionError", 1, id="coq_unify_compiled"),
        pytest.param("v", outcome(1, stderr="Syntax error"), "SyntaxError", 1, id="coq_syntax"),
        pytest.param("kotlin", outcome(1), "Exception", 1, id="unknown_to_multipl_e"),
    ],
)
def test_status_and_exit_code(lang: str, seen: Outcome, status: str, exit_code: int) -> None:
    reply = judge(lang, seen)
    assert (reply["status"], reply["exit_code"]) == (status, exit_code)


def failed_check(exit_code: int, stderr: str) -> Outcome:
    """The outcome of a one-step language: the program ran, and a check afterwards found a syntax error."""
    compilation = Compilation(status=Status.FAILED, exit_code=1, stdout="", stderr="checked", wall_seconds=1.0)
    return outcome(exit_code, stderr=stderr, status=Status.COMPILE_FAILED, compilation=compilation)


@pytest.mark.parametrize(
    ("lang", "seen", "status"),
    [
        ("lua", failed_check(1, "lua: syntax error"), "Exception"),
        ("pl", failed_check(255, "syntax error at"), "Exception"),
        ("javascript", failed_check(1, "SyntaxError: x"), "SyntaxError"),
        ("php", failed_check(255, "Parse error: x"), "SyntaxError"),
        ("luau", failed_check(2, "x"), "SyntaxError"),
    ],
)
def test_a_failed_check_is_classified_by_the_programs_output(lang: str, seen: Outcome, status: str) -> None:
    reply = judge(lang, seen)
    assert (reply["status"], reply["exit_code"]) == (status, seen.exit_code)
    assert reply["stderr"] == seen.stderr


def test_go_test_file_becomes_a_program() -> None:
    code = 'package a_test\nimport "testing"\nfunc TestA(t *testing.T) {}\nfunc TestB(t *testing.T) {}'
    prepared = EVALUATORS["go"].prepare(code)
    assert prepared.splitlines()[:4] == ["package main", *code.splitlines()[1:]]
    assert '{"TestA", TestA}, {"TestB", TestB}' in prepared
    program = "package main\nfunc main() {}"
    assert EVALUATORS["go"].prepare(program) == program


def test_rust_reports_a_compiler_timeout() -> None:
    assert judge("rust", not_compiled("", None, Status.TIMED_OUT))["stderr"] == "Compiler timeout"


def test_compiler_output_is_shown() -> None:
    assert judge("cpp", not_compiled("main.cpp:1: error"))["stderr"] == "main.cpp:1: error"


@pytest.mark.parametrize(
    ("word", "language"),
    [("py", "python"), ("JS", "javascript"), ("coq", "v"), ("rkt", "racket"), ("go_test.go", "go")],
)
def test_language_aliases(word: str, language: str) -> None:
    assert find_evaluator(word) == (language, EVALUATORS[language])


@pytest.mark.parametrize("word", ["dlang", "d"])
def test_d_runs_its_unit_tests(word: str) -> None:
    assert find_evaluator(word) == ("dunit", EVALUATORS["dlang"])
