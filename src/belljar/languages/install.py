"""Getting toolchains: the commands of the system's package manager, npm and pip that the TOML files name.

What will be done is known before anything is: `plan` looks, `carry_out` does. A package name comes from a file of
ours, where it was tried; none is ever made up from a language's name: "luau" on npm is something else entirely.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from belljar.contract.errors import CallerError, SandboxFault, UnknownLanguage
from belljar.languages.toolchain import TOOLCHAINS_DIR, Toolchain, find_name, load_all
from belljar.languages.toolchains import InstalledToolchains, make_readable

CORE, ALL = "core", "all"
_LINES_KEPT = 20
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One command, and where what it brings is put, if that is a directory of ours."""

    argv: tuple[str, ...]
    directory: Path | None = None
    toolchain: Toolchain | None = None

    def __str__(self) -> str:
        return " ".join(self.argv)


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallPlan:
    """What `carry_out` will do."""

    steps: tuple[Step, ...]
    prepared: tuple[Toolchain, ...]  # made ready afterwards
    present: tuple[Toolchain, ...]  # there already
    elsewhere: tuple[Toolchain, ...]  # no package manager has them


def choose(words: Iterable[str]) -> list[Toolchain]:
    """The languages that `core`, `all` or names mean.

    Raises:
        UnknownLanguage: a name means none.
    """
    chosen: dict[str, Toolchain] = {}
    for word in words:
        if word == ALL:
            chosen |= load_all()
        elif word == CORE:
            chosen |= {name: each for name, each in load_all().items() if each.install.core}
        else:
            name = find_name(word)
            if name is None:
                raise UnknownLanguage(
                    f"there is no language {word!r}; choose from: core, all, {', '.join(load_all())}", language=word
                )
            chosen[name] = load_all()[name]
    return [each for name, each in chosen.items() if name != "python"]


def plan(machine: InstalledToolchains, toolchains: Sequence[Toolchain]) -> InstallPlan:
    """What it takes to have these.

    Raises:
        CallerError: packages are needed, and there is no package manager that we know.
    """
    present = tuple(each for each in toolchains if machine.is_available(each.name))
    missing = [each for each in toolchains if each not in present]
    wanted = [each for each in missing if each.install.debian or each.install.npm or each.install.pypi]
    lacks_of_system = [
        each for each in wanted if any(not need.startswith(TOOLCHAINS_DIR) for need in machine.find_missing(each.name))
    ]
    packages = [package for each in lacks_of_system for package in each.install.debian]
    packages += _find_absent(package for each in (*present, *wanted) for package in each.install.debian_libraries)
    debian = list(dict.fromkeys(packages))
    if shutil.which("npm") is None and any(each.install.npm for each in wanted):
        debian.append("npm")
    steps = _system_steps(debian) if debian else []
    for each in wanted:
        own = machine.toolchains_dir / each.name
        if each.install.npm:
            options = ("--no-audit", "--no-fund", "--ignore-scripts", "--no-save", "--loglevel=error")
            argv = ("npm", "install", *options, "--prefix", str(own), *each.install.npm)
            steps.append(Step(argv=argv, directory=own, toolchain=each))
        if each.install.pypi:
            pip = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--upgrade")
            argv = (*pip, "--no-deps", "--target", str(own / "python"), *each.install.pypi)
            steps.append(Step(argv=argv, directory=own, toolchain=each))
    return InstallPlan(
        steps=tuple(steps),
        prepared=tuple(each for each in (*present, *wanted) if each.prepare is not None),
        present=present,
        elsewhere=tuple(each for each in missing if each not in wanted),
    )


def _find_absent(packages: Iterable[str]) -> list[str]:
    """Those that are not installed; none of them, on a system whose packages are others."""
    asked = list(dict.fromkeys(packages))
    if not asked or shutil.which("dpkg-query") is None:
        return []
    query = ["dpkg-query", "--show", "--showformat=${Package} ${db:Status-Status}\n", *asked]
    said = subprocess.run(query, stdin=subprocess.DEVNULL, capture_output=True, text=True).stdout
    return [package for package in asked if f"{package} installed" not in said.splitlines()]


def _system_steps(packages: Sequence[str]) -> list[Step]:
    if shutil.which("apt-get") is None:
        raise CallerError(
            "there is no apt-get here; install what these Debian packages hold by the means of this system: "
            + ", ".join(packages)
        )
    as_root: tuple[str, ...] = ()
    if os.geteuid() != 0:
        if shutil.which("sudo") is None:
            raise CallerError(f"only root can install packages; as root: apt-get install {' '.join(packages)}")
        as_root = ("sudo",)
    patient = ("-o", "DPkg::Lock::Timeout=600")
    return [
        Step(argv=(*as_root, "apt-get", *patient, "-q", "update")),
        Step(argv=(*as_root, "apt-get", *patient, "-q", "install", "--yes", "--no-install-recommends", *packages)),
    ]


def carry_out(machine: InstalledToolchains, planned: InstallPlan, tell: Tell, tell_lines: Tell | None = None) -> None:
    """Run every step, then prepare what can be made ahead. `tell_lines` hears each line that the commands write.

    Raises:
        SandboxFault: a command failed; the message has its last lines.
    """
    for step in planned.steps:
        tell(str(step))
        if step.directory is not None:
            step.directory.mkdir(parents=True, exist_ok=True)
        code, lines = _run(step.argv, tell_lines or _ignore)
        if code != 0 and step.argv[-1] != "update":  # one unreachable source must not stop us when others have it all
            raise SandboxFault("\n".join((f"this ended with {code}: {step}", *lines)))
        if step.directory is not None and step.toolchain is not None:
            _check_integrity(step.toolchain, step.directory)
            make_readable(step.directory)
    for toolchain in planned.prepared:
        if machine.is_available(toolchain.name):
            tell(f"preparing {toolchain.title}, so that it starts faster")
            machine.forget(toolchain.name)
            machine.prepare(toolchain)


def _ignore(_line: str) -> None:
    pass


def _run(argv: Sequence[str], tell: Tell) -> tuple[int, list[str]]:
    """Run a command to its end, passing its lines on; its status and last lines. Nothing of it is left behind."""
    tail: deque[str] = deque(maxlen=_LINES_KEPT)
    started = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd="/",
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
        start_new_session=True,
        encoding="utf-8",
        errors="replace",
    )
    assert started.stdout is not None
    try:
        for line in started.stdout:
            if line.strip():
                tail.append(line.rstrip()[:500])
                tell(tail[-1])
        os.waitid(os.P_PID, started.pid, os.WEXITED | os.WNOWAIT)
    finally:
        with suppress(ProcessLookupError, PermissionError):  # until it is reaped nobody else can have its number
            os.killpg(started.pid, signal.SIGKILL)
        started.stdout.close()
        started.wait()
    return started.returncode, list(tail)


def _check_integrity(toolchain: Toolchain, directory: Path) -> None:
    """The packages that single persons have uploaded must be the very ones that were tried."""
    if not toolchain.install.integrity:
        return
    installed = json.loads((directory / "node_modules/.package-lock.json").read_text())["packages"]
    for package, wanted in toolchain.install.integrity.items():
        found = installed.get(f"node_modules/{package}", {}).get("integrity")
        if found != wanted:
            shutil.rmtree(directory / "node_modules", ignore_errors=True)
            raise SandboxFault(f"npm brought another {package} than the one that was tried ({found}); it is removed")
