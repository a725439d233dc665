"""Every language supports input, arguments, files and limits, and stays within its jail.

The programs are in `programs/LANGUAGE.toml`, one for each case; cases that a language cannot express (SQL has no
sockets) are missing from its file. The selected programs run in parallel, a few at a time, with full isolation.

A missing toolchain is skipped with a message. If BELLJAR_TEST_ALL_LANGUAGES is set, as in CI, it fails instead, except
for toolchains that Debian 12 does not package.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import threading
import tomllib
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import toolchain_roots

from belljar.assembly import build_engine
from belljar.contract.execution import Outcome, Status
from belljar.contract.request import ExecutionRequest
from belljar.engine.admission.request import admit
from belljar.engine.engine import Engine
from belljar.languages import installed_toolchains, load_all
from belljar.settings import Settings

PROGRAMS = Path(__file__).parent / "programs"
NOT_ON_DEBIAN_12 = {"julia", "lean", "swift", "vlang"}
MUST_HAVE_ALL = bool(os.environ.get("BELLJAR_TEST_ALL_LANGUAGES"))
GREETING = "žluťoučký 東京 🎉\n"
_SECONDS = 60.0  # a compiler may be slow on a busy machine

#: The input of each case.
GIVEN: dict[str, dict[str, Any]] = {
    "hello": {},
    "stdin": {"stdin": "3 4\nnaïve 東京 🎉\n"},
    "arguments": {"args": ["one", "two words", "trois-é"]},
    "files": {"files": {"data/numbers.txt": "10\n20\n12\n"}},
    "algorithm": {},
    "runtime_error": {},
    "compile_error": {},
    "endless_loop": {"limits": {"wall_seconds": 2.0}},
    "memory_bomb": {"limits": {"memory_mb": 96, "wall_seconds": _SECONDS}},
    "fork_bomb": {"limits": {"processes": 32, "wall_seconds": 3.0, "memory_mb": 1024}},
    "network": {},
    "unicode": {},
}


def _read_programs() -> dict[tuple[str, str], str]:
    found = {}
    for name, toolchain in load_all().items():
        if name == "python":
            continue
        found[name, "hello"] = toolchain.hello.source
        path = PROGRAMS / f"{name}.toml"
        programs = tomllib.loads(path.read_text()) if path.exists() else {}
        assert set(programs) <= set(GIVEN), f"{path.name} has an unknown case"
        found |= {(name, case): source for case, source in programs.items()}
    return found


SOURCES = _read_programs()


class Runs:
    """An engine in a separate thread that runs all selected programs."""

    def __init__(self, settings: Settings, wanted: list[tuple[str, str]]) -> None:
        pool = dataclasses.replace(settings.pool, max_running=4, ready_guests=2)
        # Programs compiled in an earlier test session prove nothing about the current compiler.
        languages = dataclasses.replace(settings.languages, compile_cache_bytes=0)
        self._settings = dataclasses.replace(settings, pool=pool, languages=languages)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._engine: Engine = self._call(self._open())
        self._outcomes: dict[tuple[str, str], Future[Outcome]] = {
            key: asyncio.run_coroutine_threadsafe(self._run(*key), self._loop) for key in wanted
        }

    def outcome(self, language: str, case: str) -> Outcome:
        return self._outcomes[language, case].result(timeout=600)

    def run_again(self, language: str, case: str) -> Outcome:
        return self._call(self._run(language, case))

    def close(self) -> None:
        for future in self._outcomes.values():
            future.cancel()
        self._call(self._engine.close(grace_seconds=0.0))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(timeout=600)

    async def _open(self) -> Engine:
        engine = build_engine(self._settings)
        await engine.open()
        return engine

    async def _run(self, language: str, case: str) -> Outcome:
        asked = {"limits": {"wall_seconds": _SECONDS}, **GIVEN[case]}
        return await self._engine.run(
            admit(self._settings, ExecutionRequest(SOURCES[language, case], language=language, **asked))
        )


@pytest.fixture(scope="module")
def settings(settings: Settings) -> Settings:
    languages = dataclasses.replace(settings.languages, roots=toolchain_roots.found())
    return dataclasses.replace(settings, languages=languages)


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, settings: Settings) -> Iterator[Runs]:
    machine = installed_toolchains(settings)
    selected = [getattr(item, "callspec", None) for item in request.session.items]
    # Other test files use the same parameter names.
    keys = [(spec.params.get("language"), spec.params.get("case")) for spec in selected if spec]
    started = Runs(settings, [key for key in keys if key in SOURCES and machine.is_available(key[0])])
    try:
        yield started
    finally:
        started.close()


@pytest.fixture
def outcome(runs: Runs, settings: Settings, language: str, case: str) -> Outcome:
    if not installed_toolchains(settings).is_available(language):
        reason = f"NOT TRIED: {installed_toolchains(settings).explain_missing(language).message}"
        if MUST_HAVE_ALL and language not in NOT_ON_DEBIAN_12:
            pytest.fail(reason)
        pytest.skip(reason)
    return runs.outcome(language, case)


def _cases(*names: str) -> pytest.MarkDecorator:
    chosen = [(language, case) for language, case in SOURCES if case in names]
    return pytest.mark.parametrize(("language", "case"), chosen, ids=[f"{a}-{b}" for a, b in chosen])


def _show(outcome: Outcome) -> str:
    said = outcome.compilation
    return f"{outcome.status} {outcome.exit_code} {outcome.signal}\n{outcome.stdout}\n{outcome.stderr}\n{said}"


@pytest.mark.timeout(600)
@_cases("hello", "stdin", "arguments", "files", "algorithm", "network", "unicode")
def test_program_succeeds(outcome: Outcome, language: str, case: str) -> None:
    expected = {
        "hello": load_all()[language].hello.stdout,
        "stdin": "7\nnaïve 東京 🎉\n",
        "arguments": "one\ntwo words\ntrois-é\n",
        "files": "42\n",
        "algorithm": "328\n",
        "network": "refused\n",
        "unicode": GREETING,
    }[case]
    assert (outcome.stdout, outcome.status) == (expected, Status.OK), _show(outcome)


@pytest.mark.timeout(600)
@_cases("runtime_error")
def test_a_failing_program_differs_from_a_compile_error(outcome: Outcome, language: str, case: str) -> None:
    assert outcome.status in (Status.FAILED, Status.CRASHED), _show(outcome)
    if language != "v":  # only a proof can fail there
        assert outcome.stdout.splitlines()[:1] == ["before"], _show(outcome)
    assert outcome.compilation is None or outcome.compilation.status is Status.OK


@pytest.mark.timeout(600)
@_cases("compile_error")
def test_a_compile_error_is_reported(outcome: Outcome, language: str, case: str) -> None:
    assert outcome.status is Status.COMPILE_FAILED, _show(outcome)
    assert outcome.compilation is not None
    assert outcome.compilation.status is Status.FAILED
    assert (outcome.compilation.stdout + outcome.compilation.stderr).strip(), "no error message"


@pytest.mark.timeout(600)
@_cases("endless_loop")
def test_an_endless_loop_is_stopped(outcome: Outcome, language: str, case: str) -> None:
    assert outcome.status is Status.TIMED_OUT, _show(outcome)
    assert outcome.usage.wall_seconds < 10


@pytest.mark.timeout(600)
@_cases("memory_bomb")
def test_a_memory_bomb_is_stopped(outcome: Outcome, language: str, case: str) -> None:
    if language == "luau":  # its virtual machine reports its own small memory limit
        assert (outcome.status, "OOM" in outcome.stderr) == (Status.FAILED, True), _show(outcome)
    else:
        assert outcome.status is Status.OUT_OF_MEMORY, _show(outcome)


@pytest.mark.timeout(600)
@_cases("fork_bomb")
def test_a_fork_bomb_is_contained(runs: Runs, outcome: Outcome, language: str, case: str) -> None:
    """It ends in time, and the next program runs."""
    assert outcome.usage.wall_seconds < 15, _show(outcome)
    assert outcome.status is not Status.OK or outcome.usage.wall_seconds > 0
    assert runs.run_again("sh", "hello").status is Status.OK


def test_every_language_has_its_programs() -> None:
    lacking = {name for name in load_all() if name != "python" and not (PROGRAMS / f"{name}.toml").exists()}
    assert lacking == {"dunit", "gotest", "lean", "vlang"}
