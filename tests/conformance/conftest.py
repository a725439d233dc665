"""Runs the same program twice, directly with the interpreter of a guest environment and through Belljar."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import belljar
from belljar.contract.execution import Outcome
from belljar.inside.warden.warden import reset_signals

_NATIVE_SECONDS = 60.0
_ADDRESS = re.compile(r"\b0x[0-9a-f]{9,16}\b")
_WALLS = ("place", "processes", "signals")  # themes that a container's root, processes and namespaces could affect
_ONE_IN = 8
_VARIES = re.compile(r"(?<=\(pid=)\d+(?=\))|(?<= in )\d+\.\d+(?=s\n)")  # pids, durations


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Select some of the programs for containers, where guest and jail are the same as in the local back end.

    All that concern walls do; of each other group (a folder of programs, a test, or the workloads together) the first,
    and one in eight of the rest. BELLJAR_TEST_ALL_CONTAINED=1 runs every one. Inside gVisor, which is another kernel,
    every program always runs.
    """
    if os.environ.get("BELLJAR_TEST_ALL_CONTAINED") == "1":
        return
    seen: Counter[tuple[str, str]] = Counter()
    left_out = []
    for item in items:
        name, _, case = item.name.partition("[container")
        theme = case.strip("-]").partition("/")[0] if "/" in case else ""
        if item.path.name == "test_workloads.py":
            name = item.path.name
        if case and item.path.is_relative_to(Path(__file__).parent) and theme not in _WALLS:
            seen[name, theme] += 1
            if seen[name, theme] % _ONE_IN != 1:
                left_out.append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        dropped = set(left_out)
        items[:] = [item for item in items if item not in dropped]


class Seen(NamedTuple):
    """Everything that a caller can observe of a program."""

    exit_code: int | None
    signal: str | None
    stdout: str
    stderr: str


@pytest.fixture(scope="session", params=["local", "container", "gvisor"])
def box(request: pytest.FixtureRequest, box: belljar.Sandbox) -> belljar.Sandbox:
    """A sandbox of each back end that works on this machine."""
    if request.param == "local":
        return box
    contained: belljar.Sandbox = request.getfixturevalue(f"{request.param}_box")
    return contained


_ran_natively: dict[tuple[str, str, str], Seen] = {}


@pytest.fixture
def natively(tmp_path: Path) -> Callable[..., Seen]:
    """Run a program as `python main.py` in an empty directory without a jail; once for all back ends."""

    def run(code: str, root: Path, **given: Any) -> Seen:
        key = code, str(root), repr(given)
        if key not in _ran_natively:
            _ran_natively[key] = run_natively(code, root, tmp_path, **given)
        return _ran_natively[key]

    return run


@pytest.fixture(scope="session")
def seen() -> Callable[[Outcome], Seen]:
    """Convert an outcome to what a native run can be compared with."""
    return what_was_seen


def run_natively(
    code: str,
    root: Path,
    directory: Path,
    *,
    stdin: str | bytes = b"",
    args: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    files: Mapping[str, str | bytes] | None = None,
) -> Seen:
    """Run with the interpreter of the environment at `root`; its paths are renamed to those in a jail."""
    for path, content in {"main.py": code, **(files or {})}.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_bytes(_encoded(content))
    environ = {
        "PATH": f"{root}/bin:/usr/local/bin:/usr/bin:/bin",
        "HOME": str(directory),
        "USER": "sandbox",
        "LANG": "C.UTF-8",
        "VIRTUAL_ENV": str(root),
    }
    ended = subprocess.run(
        [f"{root}/bin/python", "main.py", *args],
        cwd=directory,
        env={**environ, **(env or {})},
        capture_output=True,
        timeout=_NATIVE_SECONDS,
        start_new_session=True,  # its own process group, so that it cannot signal ours
        preexec_fn=reset_signals,  # even if our parent ignores signals, as a CI runner does
        **({"input": _encoded(stdin)} if stdin else {"stdin": subprocess.DEVNULL}),
    )
    names = {str(root): "/env", str(directory): "/work"}
    code_or_signal = ended.returncode
    return Seen(
        exit_code=code_or_signal if code_or_signal >= 0 else None,
        signal=signal.Signals(-code_or_signal).name if code_or_signal < 0 else None,
        stdout=_normalised(ended.stdout.decode("utf-8", "replace"), names),
        stderr=_normalised(ended.stderr.decode("utf-8", "replace"), names),
    )


def what_was_seen(outcome: Outcome) -> Seen:
    """The part of an outcome that a native run has too."""
    return Seen(outcome.exit_code, outcome.signal, _normalised(outcome.stdout, {}), _normalised(outcome.stderr, {}))


def _encoded(content: str | bytes) -> bytes:
    return content.encode() if isinstance(content, str) else content


def _normalised(text: str, names: Mapping[str, str]) -> str:
    for theirs, ours in names.items():
        text = text.replace(theirs, ours)
    return _VARIES.sub("…", _ADDRESS.sub("0x…", text))
