"""Every Python from 3.9 on works as a guest: core fidelity programs on each installed version."""

from __future__ import annotations

import dataclasses
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import belljar
from belljar.contract.errors import EnvironmentBroken
from belljar.environments import Environments
from belljar.settings import EnvironmentSettings, Settings

pytestmark = pytest.mark.timeout(600)  # the first test waits for the environments to be built

PROGRAMS = Path(__file__).parent / "programs"
VERSIONS = ("3.9", "3.10", "3.11", "3.12", "3.13")
OUR_OWN = f"3.{sys.version_info.minor}"  # always present: the tests run on it

CORE: dict[str, dict[str, Any]] = {
    "argv/argparse_error": {"args": ["x"]},
    "argv/plain": {"args": ["one", "two words"]},
    "asyncio/subprocess": {},
    "env/given": {"env": {"GIVEN": "1", "ÜMLAUT": "ä"}},
    "exit/after_error": {},
    "exit/atexit_order": {},
    "exit/builtin_quit": {},
    "exit/huge": {},
    "exit/keyboard_interrupt": {},
    "exit/main_while_thread_runs": {},
    "exit/string": {},
    "exit/three": {},
    "import/reload": {},
    "main/attributes": {},
    "main/inspect_source": {},
    "main/signals": {},
    "main/sys_facts": {},
    "main/sys_flags": {},
    "pickle/in_subprocess": {},
    "print/unicode": {},
    "processes/fork": {},
    "processes/multiprocessing_pool": {},
    "processes/multiprocessing_spawn": {},
    "stdin/iteration": {"stdin": "a\nb\n\nlast"},
    "stdlib/logging": {},
    "stdlib/unittest_failing": {},
    "stdout/attributes": {},
    "threads/joined_at_exit": {},
    "traceback/chained": {},
    "traceback/frames_above_main": {},
    "traceback/in_thread": {},
    "traceback/recursion": {},
    "traceback/syntax_error": {},
}


@pytest.fixture(scope="module")
def guest_settings(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """An environment with only the standard library for each installed Python."""
    base = tmp_path_factory.mktemp("interpreters")
    requested = {
        _name(version): EnvironmentSettings(packages=(), python=version, warm_imports=()) for version in VERSIONS
    }
    found: dict[str, EnvironmentSettings] = {}
    for name, spec in requested.items():
        try:
            Environments(base, requested).ensure(name, print)
            found[name] = spec
        except EnvironmentBroken as error:
            if "no working Python" not in error.message:
                raise
    yield dataclasses.replace(settings, state_dir=base, environments=found)
    shutil.rmtree(base)


@pytest.fixture(scope="module")
def guests(guest_settings: Settings) -> Iterator[belljar.Sandbox]:
    """A sandbox with all these environments."""
    with belljar.Sandbox(settings=guest_settings) as opened:
        yield opened


@pytest.fixture(scope="module", params=VERSIONS)
def version(request: pytest.FixtureRequest, guest_settings: Settings) -> str:
    """Each Python version; skips missing ones with a message."""
    requested: str = request.param
    if _name(requested) not in guest_settings.environments:
        message = f"NO PYTHON {requested} ON THIS MACHINE, neither on PATH nor from pyenv: it was not tested as a guest"
        pytest.fail(message) if requested == OUR_OWN else pytest.skip(message)
    return requested


def _name(version: str) -> str:
    return f"python{version}"


def test_the_guest_is_the_requested_python(guests: belljar.Sandbox, version: str) -> None:
    outcome = guests.run("import sys; print('%d.%d' % sys.version_info[:2])", environment=_name(version))
    assert outcome.stdout == f"{version}\n"


@pytest.mark.parametrize("program", CORE)
def test_a_program_behaves_as_under_python(
    guests: belljar.Sandbox,
    version: str,
    program: str,
    natively: Callable[..., Any],
    seen: Callable[..., Any],
) -> None:
    code = (PROGRAMS / f"{program}.py").read_text("utf-8")
    root = guests.settings.state_dir.resolve() / "environments" / _name(version)
    native = natively(code, root, **CORE[program])
    assert seen(guests.run(code, environment=_name(version), timeout=30, **CORE[program])) == native
