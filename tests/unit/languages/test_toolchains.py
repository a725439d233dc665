"""Detection of installed toolchains, and files prepared for them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import threading
from pathlib import Path

from belljar.languages import load_all
from belljar.languages.toolchains import InstalledToolchains


def _install(root: Path, *paths: str) -> None:
    for path in paths:
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("#!/bin/sh\n")
        file.chmod(0o755)


def test_a_missing_toolchain_is_searched_for_again(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    machine = InstalledToolchains(tmp_path / "state", {"lua": str(root)})
    assert machine.find_missing("lua") == ["lua5.4", "luac5.4", "python3"]
    assert not machine.is_available("lua")
    assert machine.version("lua") is None
    _install(root, "usr/bin/lua5.4", "usr/bin/luac5.4", "usr/bin/python3")
    assert machine.is_available("lua")
    assert machine.find_command(load_all()["lua"], "lua5.4") == "/usr/bin/lua5.4"


def test_another_toolchain_has_another_fingerprint(tmp_path: Path) -> None:
    root = tmp_path / "root"
    _install(root, "usr/bin/lua5.4", "usr/bin/luac5.4", "usr/bin/python3")

    def fingerprint() -> str:
        return InstalledToolchains(tmp_path / "state", {"lua": str(root)}).fingerprint("lua")

    before = fingerprint()
    assert fingerprint() == before
    (root / "usr/bin/lua5.4").write_text("#!/bin/sh\n# a newer one\n")
    assert fingerprint() != before


def test_files_are_prepared_once_for_each_toolchain(tmp_path: Path) -> None:
    luau = load_all()["luau"]
    state = tmp_path / "state"
    made = state / "toolchains/luau/prepared/run.mjs"
    InstalledToolchains(state).prepare(luau)
    assert "LuauState" in made.read_text()
    assert stat.S_IMODE(made.stat().st_mode) & 0o444 == 0o444
    first = made.stat().st_ino
    InstalledToolchains(state).prepare(luau)
    assert made.stat().st_ino == first
    _install(state / "toolchains/luau", "node_modules/luau-web/src/index.js")
    InstalledToolchains(state).prepare(luau)
    assert made.stat().st_ino != first
    left_over = [path.name for path in made.parent.parent.iterdir() if path.name.startswith(".making")]
    assert left_over == []


def test_a_program_cannot_block_preparation_with_file_locks(tmp_path: Path) -> None:
    own = tmp_path / "state/toolchains/luau"
    own.mkdir(parents=True)
    (own / ".lock").touch()
    with contextlib.ExitStack() as held:
        for path in (own.parent, own, own / ".lock"):
            descriptor = os.open(path, os.O_RDONLY)  # as a program can: it sees the directory read-only
            held.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        preparing = threading.Thread(target=InstalledToolchains(tmp_path / "state").prepare, args=[load_all()["luau"]])
        preparing.start()
        preparing.join(20.0)
        assert not preparing.is_alive()
    preparing.join(20.0)
    assert (own / "prepared/run.mjs").exists()


def test_a_failed_preparation_leaves_nothing_and_blocks_nothing(tmp_path: Path) -> None:
    machine = InstalledToolchains(tmp_path / "state", {"v": str(tmp_path / "none")})
    machine.prepare_quietly("ts")  # no esbuild to copy
    assert not list((tmp_path / "state/toolchains/ts").iterdir())


def test_only_existing_paths_are_shown(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "etc/php").mkdir(parents=True)
    machine = InstalledToolchains(tmp_path / "state", {"php": str(root)})
    assert machine.bound_places(str(root)) == {
        "/toolchains": str(tmp_path / "state/toolchains"),
        "/etc/php": str(root / "etc/php"),
    }
