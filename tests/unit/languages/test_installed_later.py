"""Toolchains that are installed, changed or removed while a sandbox is open."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import belljar
from belljar.contract.errors import ToolchainMissing
from belljar.contract.execution import Outcome
from belljar.languages import toolchain, toolchains
from belljar.settings import Settings

LATE = """
name = "late"
title = "Late"
extensions = ["late"]
source = "main.late"
needs = ["cat", "{place}/words"]
probe = ["cat", "{place}/words"]
version = '\\w+'
reads = ["{place}"]

[run]
argv = ["cat", "{{source}}", "{place}/words"]

[hello]
source = "hello"
stdout = ""
"""


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """The path of the only file of a language called `late`, once installed; jails do not show it by default."""
    directory = Path(tempfile.mkdtemp(prefix="belljar-late-", dir="/var/tmp"))
    files = tmp_path / "languages"
    shutil.copytree(toolchain._DIRECTORY, files)
    (files / "late.toml").write_text(LATE.format(place=directory / "lib"))
    monkeypatch.setattr(toolchain, "_DIRECTORY", files)
    monkeypatch.setattr(toolchains, "_LOOK_AGAIN_SECONDS", 0.0)
    caches = (toolchain.load_all, toolchain._by_word, toolchains._machine)
    for cache in caches:
        cache.cache_clear()
    try:
        yield directory / "lib"
    finally:
        monkeypatch.undo()
        for cache in caches:
            cache.cache_clear()
        shutil.rmtree(directory)


def test_a_new_toolchain_works_without_a_restart(place: Path, bare_settings: Settings) -> None:
    with belljar.Sandbox(settings=bare_settings) as box, ThreadPoolExecutor() as threads:
        with pytest.raises(ToolchainMissing):
            box.run("x", language="late")
        beside = threads.submit(box.run, "read line; sleep 1; echo $line", language="sh", stdin="still here")
        deadline = time.monotonic() + 60
        while box.facts()["running"] == 0:  # in a pool created before
            assert time.monotonic() < deadline
            time.sleep(0.01)
        place.mkdir()
        (place / "words").write_text("version one")
        assert box.run("first ", language="late").stdout == "first version one"
        assert toolchains.installed_toolchains(bare_settings).version("late") == "version"
        assert beside.result(timeout=60).stdout == "still here\n"
        (place / "words").write_text("another")
        assert toolchains.installed_toolchains(bare_settings).version("late") == "another"
        assert box.run("second ", language="late").stdout == "second another"
        (place / "words").unlink()
        with pytest.raises(ToolchainMissing):
            box.run("x", language="late")


def test_concurrent_runs_share_the_new_pool(place: Path, bare_settings: Settings) -> None:
    with belljar.Sandbox(settings=bare_settings) as box, ThreadPoolExecutor(8) as threads:
        box.run("true", language="sh")
        place.mkdir()
        (place / "words").write_text("seen")

        def run(_: int) -> Outcome:
            return box.run("all have ", language="late")

        assert {each.stdout for each in threads.map(run, range(16))} == {"all have seen"}
