"""Every parser of hostile bytes: its whole corpus, a little fuzzing from there, and time that grows with the input.

Where atheris has no wheel for this Python or machine, hypothesis mutates the corpus instead, blindly, and a warning at
the end of the test run says so.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
import time
import tracemalloc
import warnings
from pathlib import Path
from types import FrameType

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).resolve().parent))
import harness

from belljar.contract.execution import Evidence

SECONDS = int(os.environ.get("FUZZ_SECONDS", "2"))
HAS_ATHERIS = importlib.util.find_spec("atheris") is not None
MEMORY_BYTES_MAX = 32 << 20  # that one input may take at its peak
_SMALL_BYTES, _LARGE_BYTES = 2048, harness.BYTES_MAX * 2
_FACTOR = _LARGE_BYTES // _SMALL_BYTES
_NOTHING_SECONDS = 0.15  # not worth a comparison


@pytest.fixture(scope="module", params=harness.names())
def target(request: pytest.FixtureRequest) -> harness.Target:
    return harness.load(request.param)


def test_every_target_has_a_corpus_and_every_corpus_a_target() -> None:
    assert sorted(path.name for path in (harness.HERE / "corpus").iterdir()) == harness.names()
    assert all(len(harness.load(name).corpus) >= 5 for name in harness.names())


def test_every_corpus_input_is_handled(target: harness.Target) -> None:
    for path in target.corpus:
        data = path.read_bytes()
        assert len(data) <= harness.BYTES_MAX, path
        target.check(data)
        tracemalloc.start()
        try:
            target.check(data)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < MEMORY_BYTES_MAX, path


def test_time_grows_with_the_input(target: harness.Target) -> None:
    """Each kept input and each token of it, again and again: sixteen times as much takes no hundred times as long."""
    repeated = {*target.tokens, b" ", b"[", b"\0", b"\xff", b"a", b"-", b"\n", b'"a":'}
    seeds = [path.read_bytes() for path in target.corpus]
    for piece in sorted(repeated):
        _check_growth(target, b"", piece)
        for seed in seeds[:: max(1, len(seeds) // 2)]:
            _check_growth(target, seed[: _SMALL_BYTES // 4], piece)
    for seed in filter(None, seeds):
        _check_growth(target, b"", seed)


def _check_growth(target: harness.Target, head: bytes, piece: bytes) -> None:
    large = _seconds(target, head, piece, _LARGE_BYTES)
    if large < _NOTHING_SECONDS:
        return
    small, large = (min(_seconds(target, head, piece, size) for _ in range(3)) for size in (_SMALL_BYTES, _LARGE_BYTES))
    assert large < _NOTHING_SECONDS or large < 6 * _FACTOR * small, (head, piece[:100], small, large)


def _seconds(target: harness.Target, head: bytes, piece: bytes, size: int) -> float:
    data = (head + piece * (size // len(piece) + 1))[:size]
    began = time.process_time()
    target.check(data)
    return time.process_time() - began


@pytest.mark.filterwarnings("default:the parsers of hostile bytes:UserWarning")
def test_fuzzing_finds_nothing(target: harness.Target) -> None:
    if HAS_ATHERIS:
        _fuzz(target.name)
        return
    warnings.warn(
        f"the parsers of hostile bytes are not fuzzed here, atheris is not installed; {target.name} is mutated blindly",
        stacklevel=1,
    )
    _mutate_blindly(target)


def _fuzz(name: str) -> None:
    command = [sys.executable, str(harness.HERE / "run.py"), name, "--seconds", str(SECONDS)]
    with tempfile.TemporaryDirectory() as scratch:
        ended = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SECONDS + 90,
            check=False,
            env={**os.environ, "TMPDIR": scratch},
        )
        assert not os.listdir(scratch), "it leaves files behind"
    assert ended.returncode == 0, ended.stderr[-6000:]
    assert "stat::number_of_executed_units" in ended.stderr


@pytest.mark.parametrize(
    ("kept", "function", "count"), [("two_cells", "LocalSession.run", 2), ("files", "SessionFiles.list_files", 1)]
)
def test_session_messages_reach_cells_and_listings(kept: str, function: str, count: int) -> None:
    """Else a target that has lost its way would find nothing for ever."""
    words, answers = harness.load("session_words"), []

    def note(frame: FrameType, event: str, returned: object) -> None:
        if event == "return" and frame.f_code.co_qualname == function and isinstance(returned, (Evidence, list)):
            answers.append(returned)

    data = (harness.HERE / "corpus" / words.name / kept).read_bytes()
    sys.setprofile(note)
    try:
        words.run(data)
    finally:
        sys.setprofile(None)
    assert len(answers) == count


def test_fuzzing_works_without_atheris() -> None:
    """The fallback for platforms without atheris, tested on all of them."""
    taken: list[bytes] = []
    broken = harness.Target(name="pictures", run=taken.append, allowed=(), tokens=(b"token",))
    _mutate_blindly(broken)
    assert len(set(taken)) > 100
    assert any(b"token" in data for data in taken)


_EDIT = st.tuples(st.integers(0, harness.BYTES_MAX), st.integers(0, 16), st.binary(max_size=16))


def _mutate_blindly(target: harness.Target) -> None:
    seeds = [path.read_bytes() for path in target.corpus]
    tokens = st.tuples(st.integers(0, harness.BYTES_MAX), st.just(0), st.sampled_from(target.tokens or (b"\0",)))

    @settings(max_examples=300, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(seed=st.sampled_from(seeds), edits=st.lists(st.one_of(_EDIT, tokens), min_size=1, max_size=8))
    def mutate(seed: bytes, edits: list[tuple[int, int, bytes]]) -> None:
        for at, removed, inserted in edits:
            place = at % (len(seed) + 1)
            seed = seed[:place] + inserted + seed[place + removed :]
        target.check(seed[: harness.BYTES_MAX])

    mutate()
