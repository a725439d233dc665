"""Sessions in JavaScript and bash: one interpreter for all cells, with the same isolation and error reports."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import belljar
from belljar.contract.errors import CannotBranch, NotOffered, SessionEnded

pytestmark = pytest.mark.parametrize("box", ["local"], indirect=True)  # the container's image has no Node


@pytest.fixture(params=["javascript", "bash"])
def session(request: pytest.FixtureRequest, box: belljar.Sandbox) -> Iterator[belljar.Session]:
    with box.session(language=request.param) as opened:
        yield opened


@pytest.fixture
def node(box: belljar.Sandbox) -> Iterator[belljar.Session]:
    with box.session(language="js") as opened:
        yield opened


@pytest.fixture
def bash(box: belljar.Sandbox) -> Iterator[belljar.Session]:
    with box.session(language="sh") as opened:
        yield opened


def is_node(session: belljar.Session) -> bool:
    return session.state().language == "javascript"


def test_state_persists_in_javascript(node: belljar.Session) -> None:
    assert node.run("let x = 41; const y = {a: [1, 2]}; console.log('hi')").stdout == "hi\n"
    outcome = node.run("x + 1")
    assert (outcome.language, [each.content for each in outcome.displays]) == ("javascript", [b"42"])
    assert [each.content for each in node.run("y").displays] == [b"{ a: [ 1, 2 ] }"]
    assert not node.run("undefined").displays


def test_javascript_awaits_at_the_top_level(node: belljar.Session) -> None:
    assert node.run("await new Promise(done => setTimeout(() => done('later'), 20))").displays[0].content == b"'later'"
    assert node.run("const os = require('os'); os.platform()").displays[0].content == b"'linux'"


@pytest.mark.parametrize(
    ("code", "kind", "message"),
    [
        pytest.param("throw new TypeError('bad')", "TypeError", "bad", id="thrown"),
        pytest.param("await Promise.reject(new RangeError('far'))", "RangeError", "far", id="rejected"),
        pytest.param("missing.name", "ReferenceError", "missing is not defined", id="reference"),
        pytest.param("let = = 3", "SyntaxError", "", id="syntax"),
        pytest.param("if (true) {", "SyntaxError", "", id="cut_short"),
    ],
)
def test_javascript_errors_are_reported(node: belljar.Session, code: str, kind: str, message: str) -> None:
    outcome = node.run(code)
    assert (outcome.status, outcome.exit_code) == ("failed", 1)
    assert outcome.error is not None
    assert outcome.error.type == kind
    assert message in outcome.error.message
    assert kind in outcome.stderr
    assert "node:" not in outcome.stderr
    assert node.run("1").ok


def test_state_persists_in_bash(bash: belljar.Session) -> None:
    assert bash.run("x=41; cd /tmp; greet() { echo hello $1; }").ok
    outcome = bash.run("echo $((x + 1)); pwd; greet you; echo aside >&2")
    assert (outcome.stdout, outcome.stderr) == ("42\n/tmp\nhello you\n", "aside\n")


def test_a_failing_command_fails_the_cell_and_not_the_shell(bash: belljar.Session) -> None:
    outcome = bash.run("echo before; false")
    assert (outcome.status, outcome.stdout) == ("failed", "before\n")
    assert outcome.error is not None
    assert "1" in outcome.error.message
    assert bash.run("if").status == "failed"
    assert bash.run("echo after").stdout == "after\n"


def test_commands_find_an_empty_standard_input(bash: belljar.Session) -> None:
    assert bash.run("cat; read line || echo nothing").stdout == "nothing\n"
    assert bash.run("echo on").stdout == "on\n"


@pytest.mark.parametrize(
    ("language", "cells"),
    [
        pytest.param("js", ("let x = 1", "while (true) {}", "console.log(x)"), id="javascript_loops"),
        pytest.param("js", ("let x = 1", "await new Promise(() => {})", "console.log(x)"), id="javascript_awaits"),
        pytest.param("sh", ("x=1", "while true; do :; done", "echo $x"), id="bash_loops"),
        pytest.param("sh", ("x=1", "while true; do sleep 60; done", "echo $x"), id="bash_waits"),
    ],
)
def test_a_cell_out_of_time_is_interrupted_and_the_state_survives(
    box: belljar.Sandbox, language: str, cells: tuple[str, str, str]
) -> None:
    with box.session(language=language) as session:
        assert session.run(cells[0]).ok
        assert session.run(cells[1], timeout=0.5).status == "timed_out"
        assert session.run(cells[2]).stdout == "1\n"


@pytest.mark.parametrize(("language", "code"), [("js", "process.exit(3)"), ("sh", "exit 3")])
def test_exit_ends_the_session_with_its_code(box: belljar.Sandbox, language: str, code: str) -> None:
    with box.session(language=language) as session:
        outcome = session.run(code)
        assert (outcome.status, outcome.exit_code) == ("failed", 3)
        with pytest.raises(SessionEnded, match="exited"):
            session.run("1")


def test_output_between_cells_belongs_to_no_cell(node: belljar.Session) -> None:
    assert node.run("setTimeout(() => console.log('late'), 50); 1").stdout == ""
    assert node.run("await new Promise(done => setTimeout(done, 300))").ok  # its own output, if any
    assert node.run("2").stdout == ""


@pytest.mark.parametrize(
    ("language", "code"), [("js", "console.log('x'.repeat(200000))"), ("sh", "yes x | head -c 200000")]
)
def test_long_output_arrives_completely(box: belljar.Sandbox, language: str, code: str) -> None:
    with box.session(language=language) as session:
        assert len(session.run(code).stdout) >= 200_000
        assert session.run("console.log(1)" if language == "js" else "echo 1").stdout == "1\n"


def test_files_are_in_the_interpreters_directory(session: belljar.Session) -> None:
    session.write_file("in.txt", b"given")
    assert session.run(
        "require('fs').copyFileSync('in.txt', 'out.txt')" if is_node(session) else "cp in.txt out.txt"
    ).ok
    assert session.read_file("out.txt") == b"given"


def test_branching_is_refused_with_a_reason(session: belljar.Session) -> None:
    with pytest.raises(CannotBranch, match="only Python"):
        session.branch()
    assert session.run("1" if is_node(session) else "true").ok


def test_a_language_without_sessions_is_refused(box: belljar.Sandbox) -> None:
    with pytest.raises(NotOffered, match="python, javascript, sh"), box.session(language="cobol"):
        pass


def test_the_interpreters_memory_counts(box: belljar.Sandbox) -> None:
    with box.session(language="js", memory_mb=64) as session:
        outcome = session.run("const kept = []; while (true) kept.push(Buffer.alloc(1 << 20, 1))", timeout=30)
        assert outcome.status == "out_of_memory"
