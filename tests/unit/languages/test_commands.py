"""The commands `belljar languages` and `belljar run`."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from belljar.contract.errors import CallerError, UnknownLanguage
from belljar.languages import load_all
from belljar.languages.install import carry_out, choose, plan
from belljar.languages.toolchains import InstalledToolchains
from belljar.settings import Settings

Belljar = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def belljar(bare_settings: Settings, sources: Path) -> Belljar:
    """Run a command of the working tree."""
    variables = {
        "PYTHONPATH": str(sources),
        "PATH": os.environ["PATH"],
        "HOME": str(bare_settings.state_dir),
        "BELLJAR_STATE_DIR": str(bare_settings.state_dir),
        "BELLJAR_RUNTIME_DIR": str(bare_settings.runtime_dir),
        "BELLJAR_JAIL_UID_BASE": str(bare_settings.jail.uid_base),
        "BELLJAR_JAIL_CGROUP_PARENT": bare_settings.jail.cgroup_parent,
    }
    config = bare_settings.state_dir / "belljar.toml"
    config.write_text("[environments.default]\npackages = []\nwarm_imports = []\n")

    def run(*words: str, stdin: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "belljar", "--config", str(config), *words],
            env={**variables, **environ},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=110,
            check=False,
        )

    return run


def test_list_shows_installed_languages_and_how_to_install_the_rest(belljar: Belljar) -> None:
    done = belljar("languages", "list", "--json")
    assert done.returncode == 0, done.stderr
    rows = {each["name"]: each for each in json.loads(done.stdout)["languages"]}
    assert set(rows) == set(load_all())
    assert rows["sh"]["available"]
    assert rows["sh"]["version"][0].isdigit()
    assert rows["sh"]["install"] is None
    assert (rows["luau"]["available"], rows["luau"]["install"]) == (False, "belljar languages install luau")
    assert "vlang.io" in rows["vlang"]["install"]
    assert "luau" in belljar("languages", "list").stdout


def test_check_runs_each_hello(belljar: Belljar) -> None:
    done = belljar("languages", "check", "bash", "c", "--json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["languages"]
    assert [(row["name"], row["state"]) for row in rows] == [("sh", "ok"), ("c", "ok")]
    missing = belljar("languages", "check", "luau")
    assert missing.returncode == 1
    assert "missing" in missing.stdout


def test_install_shows_its_plan_and_asks(belljar: Belljar) -> None:
    done = belljar("languages", "install", "luau")
    assert done.returncode == 2
    assert "npm install" in done.stdout
    assert "luau-web@1.4.0" in done.stdout
    assert "--yes" in done.stderr
    here = belljar("languages", "install", "sh", "vlang")
    assert here.returncode == 0
    assert "already installed: sh" in here.stdout
    assert "vlang.io" in here.stderr
    assert belljar("languages", "install", "cobol").returncode == 2


def test_a_files_extension_selects_the_language(belljar: Belljar, tmp_path: Path) -> None:
    program = tmp_path / "double.c"
    program.write_text(
        '#include <stdio.h>\nint main(void) { int n; scanf("%d", &n); printf("%d\\n", n * 2); return 4; }'
    )
    done = belljar("run", str(program), stdin="21")
    assert (done.stdout, done.returncode) == ("42\n", 4)
    said = belljar("run", "--language", "bash", "-c", 'echo "$1"', "--", "two words")
    assert (said.stdout, said.returncode) == ("two words\n", 0)


def test_compiler_output_goes_to_standard_error(belljar: Belljar) -> None:
    done = belljar("run", "--language", "c", "-c", "int main( {")
    assert (done.stdout, done.returncode) == ("", 1)
    assert "main.c:1" in done.stderr
    assert "not run: compilation failed" in done.stderr


# ---- installing, with fake package managers that record their arguments


@pytest.fixture
def packagers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Fake apt-get and npm in front of the PATH, which record their arguments in `log`."""
    log = tmp_path / "log"
    for name in ("apt-get", "npm", "sudo"):
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        body = f'#!/bin/sh\necho "{name} $*" >> {log}\n'
        if name == "npm":
            body += (
                'while [ "$1" != --prefix ]; do shift; done\n'
                'mkdir -p "$2/node_modules/@esbuild/linux-x64/bin"\n'
                'cp /bin/true "$2/node_modules/@esbuild/linux-x64/bin/esbuild"\n'
                'echo \'{"packages": {"node_modules/luau-web": {"integrity": "sha512-another"}}}\''
                ' > "$2/node_modules/.package-lock.json"\n'
            )
        path.write_text(body)
        path.chmod(path.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return log


def _empty_machine(directory: Path) -> InstalledToolchains:
    """A machine without toolchains: all are searched for in an empty root."""
    root = directory / "root"
    root.mkdir()
    return InstalledToolchains(directory / "state", {name: str(root) for name in load_all()})


def test_one_command_installs_all_system_packages(tmp_path: Path, packagers: Path) -> None:
    planned = plan(_empty_machine(tmp_path), choose(["all"]))
    update, install, *others = planned.steps
    assert update.argv[-1] == "update"
    packages = install.argv[install.argv.index("--no-install-recommends") + 1 :]
    assert {"g++", "ghc", "nodejs", "openjdk-17-jdk-headless", "coq"} <= set(packages)
    assert len(packages) == len(set(packages))
    assert {each.argv[0] for each in others} == {"npm", sys.executable}
    assert {each.name for each in planned.elsewhere} == {"julia", "lean", "swift", "vlang"}
    assert not packagers.exists()  # only planned, not run


def test_core_contains_the_common_languages() -> None:
    core = {each.name for each in choose(["core"])}
    assert core == {"javascript", "ts", "sh", "c", "cpp", "java", "go", "rust", "ruby", "php"}


def test_steps_are_carried_out_in_order(tmp_path: Path, packagers: Path) -> None:
    machine = _empty_machine(tmp_path)
    told: list[str] = []
    carry_out(machine, plan(machine, choose(["hs", "ts"])), told.append)
    calls = packagers.read_text().splitlines()
    if os.geteuid() != 0:
        calls = [call.removeprefix("sudo ") for call in calls]
    assert [call.split()[0] for call in calls] == ["apt-get", "apt-get", "npm"]
    assert calls[1].endswith("ghc nodejs")
    assert calls[2].endswith("esbuild@0.28.2")
    assert any("apt-get" in line for line in told)


def test_another_package_of_the_same_name_is_refused(tmp_path: Path, packagers: Path) -> None:
    machine = _empty_machine(tmp_path)
    with pytest.raises(Exception, match="another luau-web than the one that was tried"):
        carry_out(machine, plan(machine, choose(["luau"])), lambda _: None)
    assert not (machine.toolchains_dir / "luau/node_modules").exists()


def test_a_failed_command_is_reported_with_its_last_output(tmp_path: Path, packagers: Path) -> None:
    machine = _empty_machine(tmp_path)
    planned = plan(machine, choose(["lua"]))
    (tmp_path / "bin/apt-get").write_text("#!/bin/sh\necho no such package\nexit 100\n")
    with pytest.raises(Exception, match="ended with 100") as failed:
        carry_out(machine, planned, lambda _: None)
    assert "no such package" in str(failed.value)


def test_without_apt_the_packages_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CallerError, match=r"this system has no apt-get.*lua5\.4"):
        plan(_empty_machine(tmp_path), choose(["lua"]))


def test_libraries_are_installed_for_an_existing_toolchain(tmp_path: Path, packagers: Path) -> None:
    machine = InstalledToolchains(tmp_path / "state", {})
    query = tmp_path / "bin/dpkg-query"
    query.write_text("#!/bin/sh\nexit 1\n")  # its answer for unknown packages
    query.chmod(0o755)
    planned = plan(machine, choose(["perl"]))
    assert [each.name for each in planned.present] == ["pl"]
    assert planned.steps[-1].argv[-2:] == ("--no-install-recommends", "libtest-deep-perl")
    query.write_text("#!/bin/sh\necho libtest-deep-perl installed\n")
    assert not plan(machine, choose(["perl"])).steps
    assert not packagers.exists()


def test_names_are_never_guessed() -> None:
    with pytest.raises(UnknownLanguage, match="choose from: core, all"):
        choose(["cobol"])
