"""A standby Node behaves like a newly started one: same output, same isolation, nothing left behind."""

from __future__ import annotations

import dataclasses
import os
import shutil
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import belljar
from belljar.contract.execution import Outcome, Status
from belljar.languages import installed_toolchains
from belljar.settings import Settings

pytestmark = pytest.mark.skipif(
    shutil.which("node", path="/usr/local/bin:/usr/bin") is None, reason="NOT TRIED: no node"
)

_DEADLINE_SECONDS = 60.0

PROGRAMS: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_name("standby_programs.toml").read_text())
for _each in PROGRAMS.values():
    if "stdin_lines" in _each:
        _each["stdin"] = "line\n" * _each.pop("stdin_lines")


def _reported(outcome: Outcome) -> tuple[Any, ...]:
    said = outcome.compilation and (outcome.compilation.status, outcome.compilation.stderr)
    return outcome.status, outcome.exit_code, outcome.signal, outcome.stdout, outcome.stderr, said


@pytest.fixture(scope="module")
def cold_box(bare_settings: Settings) -> Iterator[belljar.Sandbox]:
    languages = dataclasses.replace(bare_settings.languages, standby_processes=0)
    with belljar.Sandbox(settings=dataclasses.replace(bare_settings, languages=languages)) as opened:
        yield opened


@pytest.fixture(scope="module")
def warm_box(bare_settings: Settings) -> Iterator[belljar.Sandbox]:
    languages = dataclasses.replace(bare_settings.languages, standby_processes=1)
    with belljar.Sandbox(settings=dataclasses.replace(bare_settings, languages=languages)) as opened:
        opened.run("0", language="js")  # from now on one is on standby
        yield opened


def _need(settings: Settings, language: str) -> None:
    """Skip with a message if a toolchain is missing; in CI, which installs all of them, fail."""
    if not installed_toolchains(settings).is_available(language):
        why = f"NOT TRIED: {language} is not in the state directory: belljar languages install {language}"
        pytest.fail(why) if os.environ.get("BELLJAR_TEST_ALL_LANGUAGES") else pytest.skip(why)


def _facts(box: belljar.Sandbox) -> dict[str, int]:
    return dict(box.facts()["sandbox"])


def _wait_for_standby(box: belljar.Sandbox, count: int = 1) -> None:
    deadline = time.monotonic() + _DEADLINE_SECONDS
    while _facts(box)["standby_processes"] != count:
        assert time.monotonic() < deadline, _facts(box)
        time.sleep(0.01)


def _run_on_standby(box: belljar.Sandbox, **asked: Any) -> Outcome:
    _wait_for_standby(box)
    before = _facts(box)["standby_runs"]
    outcome = box.run(language="js", **asked)
    assert _facts(box)["standby_runs"] == before + 1
    return outcome


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_cannot_detect_a_standby_process(
    warm_box: belljar.Sandbox, cold_box: belljar.Sandbox, name: str
) -> None:
    warm = _run_on_standby(warm_box, **PROGRAMS[name])
    cold = cold_box.run(language="js", **PROGRAMS[name])
    assert _reported(warm) == _reported(cold)
    assert cold.stdout or cold.stderr or cold.signal or cold.exit_code


def test_each_process_runs_one_program(warm_box: belljar.Sandbox) -> None:
    leave = "const fs = require('fs'); console.log(fs.readdirSync('/work'), fs.readdirSync('/tmp'), globalThis.x);"
    leave += "fs.writeFileSync('/tmp/left', ''); fs.writeFileSync('left', ''); globalThis.x = 1"
    outcomes = [_run_on_standby(warm_box, code=leave) for _ in range(2)]
    assert [each.stdout for each in outcomes] == ["[ 'main.js' ] [] undefined\n"] * 2


def test_limits_start_with_the_program(warm_box: belljar.Sandbox) -> None:
    _wait_for_standby(warm_box)
    time.sleep(0.5)  # on standby for longer than the program's time limit, which does not count
    outcome = _run_on_standby(warm_box, code="for (;;);", limits={"wall_seconds": 0.5})
    assert outcome.status is Status.TIMED_OUT
    outcome = _run_on_standby(warm_box, code="for (;;);", limits={"cpu_seconds": 0.3, "wall_seconds": 30})
    assert outcome.status is Status.TIMED_OUT
    hoard = "const all = []; for (;;) all.push(Buffer.alloc(1 << 20, 1))"
    assert _run_on_standby(warm_box, code=hoard).status is Status.OUT_OF_MEMORY
    artifact = _run_on_standby(warm_box, code="require('fs').writeFileSync('o.txt', 'made')", artifacts=["*.txt"])
    assert [(file.path, file.content) for file in artifact.artifacts] == [("o.txt", b"made")]


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param({"env": {"NODE_PATH": "/work/lib"}}, id="own_environment"),
        pytest.param({"limits": {"disk_mb": 8}}, id="another_disk"),
        pytest.param({"files": {"large.txt": "x" * 100_000}}, id="large_files"),
    ],
)
def test_unusual_requests_start_a_new_process(warm_box: belljar.Sandbox, asked: dict[str, Any]) -> None:
    _wait_for_standby(warm_box)
    before = _facts(warm_box)["standby_runs"]
    outcome = warm_box.run("console.log(process.env.NODE_PATH || 'none')", language="js", **asked)
    assert outcome.stdout == f"{asked.get('env', {}).get('NODE_PATH', 'none')}\n"
    assert _facts(warm_box)["standby_runs"] == before


def test_dead_standby_processes_do_not_affect_programs(warm_box: belljar.Sandbox, bare_settings: Settings) -> None:
    """Without their script, all standby processes die at once; a few are retried, and programs still run."""
    driver = bare_settings.state_dir / "toolchains/javascript/prepared/standby.cjs"
    text = driver.read_text()
    languages = dataclasses.replace(bare_settings.languages, standby_processes=1)
    with belljar.Sandbox(settings=dataclasses.replace(bare_settings, languages=languages)) as box:
        try:
            box.run("0", language="js")
            driver.write_text("throw new Error('ours')")
            for n in range(8):
                outcome = box.run(f"console.log({n})", language="js")
                assert (outcome.status, outcome.stdout, outcome.stderr) == (Status.OK, f"{n}\n", "")
        finally:
            driver.write_text(text)


def test_a_standby_compiler_prints_the_same_messages(settings: Settings) -> None:
    _need(settings, "ts")
    programs = [
        "enum E { A = 3 }\nconsole.log('é' as string, E.A);",
        "let x: = 3;",
        "console.log(1);\nfunction f(n: number): void { throw new Error(`${n}`); }\nf(2);",
    ]
    told = []
    for count in (0, 1):
        languages = dataclasses.replace(settings.languages, standby_processes=count, compile_cache_bytes=0)
        with belljar.Sandbox(settings=dataclasses.replace(settings, languages=languages)) as box:
            box.run("0", language="ts")
            answers = []
            for code in programs:
                _wait_for_standby(box, 2 * count)  # the compiler and the runtime
                answers.append(_reported(box.run(code, language="ts")))
            told.append(answers)
            assert _facts(box)["standby_runs"] == (5 if count else 0)
    assert told[0] == told[1]
    assert [each[0] for each in told[0]] == [Status.OK, Status.COMPILE_FAILED, Status.FAILED]
    assert "main.ts:2" in told[0][2][4]


def test_a_standby_luau_prints_the_same_output(settings: Settings) -> None:
    _need(settings, "luau")
    asked: list[dict[str, Any]] = [
        {
            "code": "print(#arg, arg[1], arg[2], readline(), readline(), readline(), readfile('a/b.txt'))\nwarn('é')",
            "args": ["--wait", "é x"],
            "stdin": "one\ntwo",
            "files": {"a/b.txt": "text"},
        },
        {"code": "print(readline(), #arg)\nexit(7)"},
        {"code": "local none = nil\nprint(none.field)"},
        {"code": "local x = = 3"},
    ]
    told = []
    for count in (0, 1):
        languages = dataclasses.replace(settings.languages, standby_processes=count)
        with belljar.Sandbox(settings=dataclasses.replace(settings, languages=languages)) as box:
            box.run("local none = nil", language="luau")
            answers = []
            for each in asked:
                _wait_for_standby(box, count)
                answers.append(_reported(box.run(language="luau", **each)))
            told.append(answers)
            assert _facts(box)["standby_runs"] == len(asked) * count
    assert told[0] == told[1]
    assert told[0][0][:5] == (Status.OK, 0, None, "2\t--wait\té x\tone\ttwo\tnil\ttext\n", "é\n")
    assert told[0][1][:5] == (Status.FAILED, 7, None, "nil\t0\n", "")
    assert [each[0] for each in told[0][2:]] == [Status.FAILED, Status.COMPILE_FAILED]


def test_the_next_compiler_is_started_after_the_program(settings: Settings) -> None:
    """Otherwise it competes for the CPU with the program whose compiler it replaces."""
    _need(settings, "ts")
    languages = dataclasses.replace(settings.languages, standby_processes=1, compile_cache_bytes=0)
    with belljar.Sandbox(settings=dataclasses.replace(settings, languages=languages)) as box:
        box.run("0", language="ts")
        _wait_for_standby(box, 2)
        waiting = [
            _facts(box)["standby_processes"]
            for _ in box.stream("console.log(1); setTimeout(() => console.log(2), 500)", language="ts")
        ]
        assert len(waiting) > 2  # started, and wrote twice
        assert not any(waiting[:-1])  # at its end the next may be ready
        _wait_for_standby(box, 2)


def test_nothing_is_started_before_the_first_request(bare_settings: Settings) -> None:
    languages = dataclasses.replace(bare_settings.languages, standby_processes=1)
    with belljar.Sandbox(settings=dataclasses.replace(bare_settings, languages=languages)) as box:
        box.run("true", language="sh")
        for memory_mb in (64, 72, 80, 88, 96, 104):  # each limit is a separate kind, and each is requested once
            box.run("0", language="js", memory_mb=memory_mb)
        assert _facts(box)["standby_processes"] == 0
        box.run("0", language="js", memory_mb=104)
        _wait_for_standby(box, 1)
        for memory_mb in (64, 72, 80, 88, 96, 112, 120) * 2:  # few kinds are kept
            box.run("0", language="js", memory_mb=memory_mb)
        assert _facts(box)["standby_processes"] <= 6
