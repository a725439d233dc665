"""Saving what a hostile program made: never outside the directory, never through a link."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from belljar.client import CallerError, File, Outcome, Status, Usage, save_artifacts
from belljar.contract.errors import UnsafePath


def made(*files: tuple[str, bytes]) -> Outcome:
    """The outcome of a program that left these files."""
    return Outcome(
        id="x",
        language="python",
        status=Status.OK,
        exit_code=0,
        signal=None,
        stdout="",
        stderr="",
        stdout_cut=False,
        stderr_cut=False,
        error=None,
        displays=(),
        artifacts=tuple(File(path=path, content=content) for path, content in files),
        usage=Usage(),
    )


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """A directory with a secret beside it."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("secret")
    (tmp_path / "target").mkdir()
    return tmp_path / "target"


def outside(target: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in (target.parent / "outside").iterdir()}


def test_artifacts_are_saved_by_their_paths(tmp_path: Path) -> None:
    paths = save_artifacts(made(("a.txt", b"a"), ("out/deep/b", b"\x00"), ("./c", b"c")), tmp_path / "new" / "dir")
    base = tmp_path / "new" / "dir"
    assert paths == [base / "a.txt", base / "out/deep/b", base / "c"]
    assert [path.read_bytes() for path in paths] == [b"a", b"\x00", b"c"]


@pytest.mark.parametrize(
    "path",
    [
        pytest.param("../outside/secret", id="climbs"),
        pytest.param("a/../../outside/secret", id="climbs_later"),
        pytest.param("/etc/hostile", id="absolute"),
        pytest.param("", id="empty"),
        pytest.param(".", id="the_directory_itself"),
        pytest.param("a\0b", id="nul"),
        pytest.param("a\\b", id="backslash"),
        pytest.param("a/", id="a_directory"),
        pytest.param("\ud800", id="half_a_character"),
        pytest.param("x" * 300, id="too_long"),
    ],
)
def test_a_hostile_name_saves_nothing_at_all(target: Path, path: str) -> None:
    with pytest.raises(UnsafePath):
        save_artifacts(made(("good", b""), (path, b"hostile")), target, replace=True)
    assert not list(target.iterdir())
    assert outside(target) == {"secret": "secret"}


@pytest.mark.parametrize("replace", [False, True])
def test_a_linked_directory_is_not_entered(target: Path, replace: bool) -> None:
    (target / "link").symlink_to(target.parent / "outside")
    with pytest.raises(UnsafePath, match="in its way"):
        save_artifacts(made(("link/new", b"hostile")), target, replace=replace)
    assert outside(target) == {"secret": "secret"}


def test_a_link_with_the_files_name_is_replaced_and_not_followed(target: Path) -> None:
    (target / "link").symlink_to(target.parent / "outside" / "secret")
    (target / "dangling").symlink_to(target.parent / "outside" / "made")
    os.link(target.parent / "outside" / "secret", target / "twin")
    files = made(("link", b"1"), ("dangling", b"2"), ("twin", b"3"))
    with pytest.raises(CallerError, match="exists"):
        save_artifacts(files, target)
    assert [path.read_bytes() for path in save_artifacts(files, target, replace=True)] == [b"1", b"2", b"3"]
    assert not any(path.is_symlink() for path in target.iterdir())
    assert outside(target) == {"secret": "secret"}


def test_nothing_is_written_when_one_file_exists(target: Path) -> None:
    (target / "b").write_text("mine")
    with pytest.raises(CallerError, match="replace=True"):
        save_artifacts(made(("a", b""), ("b", b"")), target)
    assert [path.name for path in target.iterdir()] == ["b"]


@pytest.mark.parametrize(
    "files",
    [
        pytest.param((("a", b""), ("a/b", b"")), id="a_file_is_also_a_directory"),
        pytest.param((("a/b", b""), ("a", b"")), id="a_directory_is_also_a_file"),
    ],
)
def test_names_that_cannot_both_be_are_refused(target: Path, files: tuple[tuple[str, bytes], ...]) -> None:
    with pytest.raises(CallerError):
        save_artifacts(made(*files), target, replace=True)
    assert not [path for path in target.rglob("*") if path.name.startswith(".belljar-")]


def test_a_file_named_twice_is_refused_unless_replaced(target: Path) -> None:
    twice = made(("a", b"1"), ("a", b"2"))
    with pytest.raises(CallerError, match="exists"):
        save_artifacts(twice, target)
    assert save_artifacts(twice, target, replace=True)[0].read_bytes() == b"2"


def test_a_directory_may_itself_be_a_link(target: Path) -> None:
    """The caller chose it; only what the program chose is distrusted."""
    (target.parent / "way").symlink_to(target)
    save_artifacts(made(("a", b"1")), target.parent / "way")
    assert (target / "a").read_bytes() == b"1"
