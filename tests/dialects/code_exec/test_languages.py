"""/any_exec with every toolchain that this machine has: a program that passes, one that fails, one that is invalid.

The programs have the form in which MultiPL-E sends them.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest


class Programs(NamedTuple):
    """Three programs of one language, the statuses of the two that fail, and the exit code of the failing one."""

    passing: str
    failing: str
    broken: str
    failure: str = "Exception"
    breakage: str = "SyntaxError"
    exit_code: int | None = None  # None: any but 0


GO = 'package a_test\nimport "testing"\nfunc add(a int, b int) int { return a + b }\n'
GO += "func TestAdd(t *testing.T) {\n    if add(1, 2) != %s { t.Errorf(%s) }\n}\n"
JAVA = (
    "import java.util.*;\nimport org.javatuples.*;\nclass Problem {\n"
    "    static Pair<Integer, Integer> swap(int a, int b) { return Pair.with(b, a); }\n"
    "    public static void main(String[] args) { assert(swap(1, %d).equals(Pair.with(3, 1))); }\n}\n"
)
SCALA = "object Problem extends App {\n    def add(a: Int, b: Int): Int = a + b\n    assert(add(1, 2) == (%d))\n}\n"
CS = (
    "using System;\nusing System.Diagnostics;\nclass Problem {\n    static int Add(int a, int b) { return a + b; }\n"
    "    public static void Main(string[] args) { Debug.Assert(Add(1, 2) == (%d)); }\n}\n"
)
D = "int add(int a, int b) { return a + b; }\nunittest\n{\n    assert(add(1, 2) == %d);\n}\nvoid main(){}\n"
CPP = "#include <assert.h>\nint add(int a, int b) { return a + b; }\nint main() { assert(add(1, 2) == %d); }\n"
RUST = "fn add(a: isize, b: isize) -> isize { a + b }\nfn main() { assert_eq!(add(1, 2), %d); }\n"
JS = "const assert = require('node:assert');\nfunction add(a, b) { return a + b; }\nassert.deepEqual(add(1, 2), %d);\n"
TS = (
    "declare var require: any;\nconst assert = require('node:assert');\n"
    "function add(a: number, b: number): number { return a + b; }\nassert.deepEqual(add(1, 2), %d);\n"
)
CLJ = "(defn add [a b] (+ a b))\n(require '[clojure.test :refer [deftest is run-test]])\n"
CLJ += '(when-not (= (add 1 2) %d) (throw (Exception. "wrong")))\n'
EX = (
    "defmodule HumanEval do\n  def add(a, b) do\n    a + b\n  end\nend\nExUnit.start()\ndefmodule HumanEvalTest do\n"
    "  use ExUnit.Case, async: true\n  test 'add' do\n    assert HumanEval.add(1, 2) == %d\n  end\nend\n"
)
HS = (
    'add :: Int -> Int -> Int\nadd a b = a + b\nmain :: IO ()\nmain = if add 1 2 == %d then return () else error "no"\n'
)
OCAML = "let add a b = a + b\nlet () = assert (add 1 2 = %d)\n"
LUA = (
    "local function add(a, b)\n    return a + b\nend\nlu = require('luaunit')\nfunction test_humaneval()\n"
    "    lu.assertEquals(add(1, 2), %d)\nend\nos.exit(lu.LuaUnit.run())\n"
)
LUAU = "local function add(a: number, b: number): number\n    return a + b\nend\nassert(add(1, 2) == %d)\n"
OCTAVE = "function r = add(a, b)\n  r = a + b;\nend\nfunction test()\n  assert(isequal(add(1, 2), %d));\nend\n"
PHP = "<?php\nfunction add($a, $b) { return $a + $b; }\nif (add(1, 2) !== %d) { throw new Exception('wrong'); }\n"
PERL = (
    "sub add { my($a, $b) = @_; return $a + $b; }\nuse Test::Deep;\nsub testhumaneval {\n"
    '    if(eq_deeply(add(1, 2), %d)) { print "ok!" } else { exit 1; }\n}\ntesthumaneval();\n'
)
RACKET = "#lang racket\n(define (add a b) (+ a b))\n(require rackunit)\n(check-equal? (add 1 2) %d)\n"
R = "add <- function(a, b) { a + b }\nif (!identical(add(1, 2), %d)) { quit('no', 1) }\n"
RUBY = (
    "def add(a, b)\n  a + b\nend\nrequire 'test/unit'\nclass TestAdd < Test::Unit::TestCase\n  def test_add\n"
    "    assert_equal %d, add(1, 2)\n  end\nend\n"
)
BASH = 'add() { echo $(($1 + $2)); }\n[[ "$(add 1 2)" = "%d" ]]\n'
COQ = "Definition add (a b : nat) := a + b.\nExample t : add 1 2 = %d.\nProof. reflexivity. Qed.\n"
DAFNY = (
    "method Add(a: int, b: int) returns (r: int)\n  ensures r == a + b\n{ r := a + b; }\n"
    "method Main() { var r := Add(1, 2); assert r == %d; }\n"
)
FS = 'let add a b = a + b\nif add 1 2 <> %d then failwith "wrong"\n'
JULIA = 'add(a, b) = a + b\nif add(1, 2) != %d\n    error("wrong")\nend\n'
SWIFT = "func add(_ a: Int, _ b: Int) -> Int { return a + b }\nassert(add(1, 2) == %d)\n"


def same(form: str, broken: str, *words: str, breakage: str = "SyntaxError", exit_code: int | None = None) -> Programs:
    """Fill a template with the right and with a wrong number."""
    return Programs(form % 3, form % 4, broken, *words, breakage=breakage, exit_code=exit_code)


PROGRAMS = {
    "clj": same(CLJ, "(defn add [a b", breakage="Exception"),
    "cpp": same(CPP, "int main( {"),
    "cs": same(CS, "class {"),
    "dfy": same(DAFNY, "method {", "VerificationError"),
    "dlang": same(D, "void main( {", exit_code=1),
    "elixir": same(EX, "x = 1 +* 2", "AssertionError"),
    "fs": same(FS, "let let", breakage="Exception"),
    "go": Programs(GO % (3, '"no"'), GO % (4, '"no"'), "package main\nfunc {"),
    "hs": same(HS, "main = = 1", breakage="Exception"),
    "java": same(JAVA, "class {"),
    "javascript": same(JS, "function (", "AssertionError"),
    "julia": same(JULIA, "function (", "SyntaxError"),
    "lua": same(LUA, "function (", breakage="Exception"),
    "luau": same(LUAU, "function ("),
    "matlab": same(OCTAVE, "function (", breakage="SyntaxError"),
    "ocaml": same(OCAML, "let let", "AssertionError"),
    "php": same(PHP, "<?php function ("),
    "pl": same(PERL, "sub {", breakage="Exception"),
    "python": same("assert 1 + 2 == %d", "def ("),
    "r": same(R, "function(", "AssertionError"),
    "racket": same(RACKET, "#lang racket\n(define", exit_code=0),  # rackunit only prints the failure
    "ruby": Programs(RUBY % 3, RUBY % 4, "def (", "Exception"),
    "rust": same(RUST, "fn main( {"),
    "scala": same(SCALA, "object {"),
    "sh": same(BASH, "if then"),
    "swift": same(SWIFT, "func ("),
    "ts": same(TS, "function (", "AssertionError"),
    "v": same(COQ, "Definition .", "AssertionError"),
}


@pytest.fixture(scope="session")
def available(server: Any) -> set[str]:
    listed = json.loads(server.ask("GET", "/v1/languages", api="native").text)["languages"]
    return {each["name"] for each in listed if each["available"]}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("lang", PROGRAMS)
def test_statuses_of_real_programs(server: Any, available: set[str], lang: str) -> None:
    if lang not in available:
        pytest.skip(f"NO {lang} ON THIS MACHINE: belljar languages install {lang}")
    programs = PROGRAMS[lang]

    def run(code: str) -> dict[str, Any]:
        answer = server.post("/any_exec", code=code, lang=lang, timeout=60)
        assert answer.startswith("0\n{"), answer
        reply: dict[str, Any] = json.loads(answer.partition("\n")[2])
        assert set(reply) == {"status", "exit_code", "stdout", "stderr"}
        return reply

    passed = run(programs.passing)
    assert (passed["status"], passed["exit_code"]) == ("OK", 0), passed
    failed = run(programs.failing)
    assert failed["status"] == programs.failure, failed
    assert failed["exit_code"] != 0 if programs.exit_code is None else failed["exit_code"] == programs.exit_code, failed
    broken = run(programs.broken)
    assert broken["status"] == programs.breakage, broken
    assert broken["exit_code"] != 0
