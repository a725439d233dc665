"""Toolchains in separate root directories."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

import belljar
from belljar.contract.errors import ToolchainMissing
from belljar.settings import LanguageSettings, Settings, load


def test_programs_see_the_root_instead_of_the_hosts(bare_settings: Settings) -> None:
    """The host's root serves as an example; it only lacks the guest environment."""
    roots = dataclasses.replace(bare_settings, languages=LanguageSettings(roots={"sh": "/"}))
    with belljar.Sandbox(settings=roots) as box:
        look = "ls / | tr '\\n' ' '; touch /usr/x 2>/dev/null || echo read-only; cat /proc/self/status | grep Seccomp:"
        there = box.run(look, language="sh")
        here = box.run("import os; print(*os.listdir('/'))")
    assert there.status == "ok", there.stderr
    assert "env" not in there.stdout.split()
    assert "read-only" in there.stdout
    assert "Seccomp:\t2" in there.stdout
    assert "env" in here.stdout.split()


def test_a_missing_root_is_reported(bare_settings: Settings, tmp_path: Path) -> None:
    for root, missing in ((tmp_path / "none", "none is missing"), (tmp_path, "bash, python3 is missing")):
        elsewhere = dataclasses.replace(bare_settings, languages=LanguageSettings(roots={"sh": str(root)}))
        with belljar.Sandbox(settings=elsewhere) as box, pytest.raises(ToolchainMissing, match=missing):
            box.run("echo hello", language="sh")


def test_roots_are_settings(tmp_path: Path) -> None:
    file = tmp_path / "belljar.toml"
    file.write_text('[languages]\ncompile_cache_shared = true\n[languages.roots]\nswift = "/srv/trixie"\n')
    languages = load(file, environ={}).languages
    assert (languages.compile_cache_shared, languages.roots) == (True, {"swift": "/srv/trixie"})
