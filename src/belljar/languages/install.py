"""Installs toolchains with the system's package manager, npm and pip, as the TOML files say.

`plan` only looks; `carry_out` acts. Package names come from our TOML files, where they were tested; they are never
derived from a language's name: "luau" on npm is something else entirely.
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
Report = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One command, and the directory of ours that it installs into, if any."""

    argv: tuple[str, ...]
    directory: Path | None = None
    toolchain: Toolchain | None = None

    def __str__(self) -> str:
        return " ".join(self.argv)


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallPlan:
    """What `carry_out` will do."""

    steps: tuple[Step, ...]
    prepared: tuple[Toolchain, ...]  # prepared after the installation
    present: tuple[Toolchain, ...]  # already installed
    elsewhere: tuple[Toolchain, ...]  # not in any package manager


def choose(words: Iterable[str]) -> list[Toolchain]:
    """Resolve `core`, `all` and names of languages.

    Raises:
        UnknownLanguage: a name is unknown.
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
                    f"unknown language {word!r}; choose from: core, all, {', '.join(load_all())}", language=word
                )
            chosen[name] = load_all()[name]
    return [each for name, each in chosen.items() if name != "python"]


def plan(machine: InstalledToolchains, toolchains: Sequence[Toolchain]) -> InstallPlan:
    """Find out which steps install these toolchains.

    Raises:
        CallerError: packages are needed, and this system has no package manager that Belljar knows.
    """
    present = tuple(each for each in toolchains if machine.is_available(each.name))
    missing = [each for each in toolchains if each not in present]
    wanted = [each for each in missing if each.install.has_packages]
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
    """The packages that are not installed; empty on a system that is not Debian."""
    asked = list(dict.fromkeys(packages))
    if not asked or shutil.which("dpkg-query") is None:
        return []
    query = ["dpkg-query", "--show", "--showformat=${Package} ${db:Status-Status}\n", *asked]
    said = subprocess.run(query, stdin=subprocess.DEVNULL, capture_output=True, text=True).stdout
    return [package for package in asked if f"{package} installed" not in said.splitlines()]


def _system_steps(packages: Sequence[str]) -> list[Step]:
    if shutil.which("apt-get") is None:
        raise CallerError(
            "this system has no apt-get; install the equivalents of these Debian packages: " + ", ".join(packages)
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


def carry_out(
    machine: InstalledToolchains, planned: InstallPlan, report: Report, on_line: Report | None = None
) -> None:
    """Run every step, then prepare the toolchains. `on_line` gets each line that the commands write.

    Raises:
        SandboxFault: a command failed; the message has its last lines.
    """
    for step in planned.steps:
        report(str(step))
        if step.directory is not None:
            step.directory.mkdir(parents=True, exist_ok=True)
        code, lines = _run(step.argv, on_line or (lambda _line: None))
        if code != 0 and step.argv[-1] != "update":  # one unreachable source must not stop the installation
            raise SandboxFault("\n".join((f"this ended with {code}: {step}", *lines)))
        if step.directory is not None and step.toolchain is not None:
            _check_integrity(step.toolchain, step.directory)
            make_readable(step.directory)
    for toolchain in planned.prepared:
        if machine.is_available(toolchain.name):
            report(f"preparing {toolchain.title}, so that it starts faster")
            machine.forget(toolchain.name)
            machine.prepare(toolchain)


def _run(argv: Sequence[str], on_line: Report) -> tuple[int, list[str]]:
    """Run a command to its end and return its status and last lines; none of its processes are left behind."""
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
                on_line(tail[-1])
        os.waitid(os.P_PID, started.pid, os.WEXITED | os.WNOWAIT)
    finally:
        with suppress(ProcessLookupError, PermissionError):  # until it is reaped, the kernel does not reuse its number
            os.killpg(started.pid, signal.SIGKILL)
        started.stdout.close()
        started.wait()
    return started.returncode, list(tail)


def _check_integrity(toolchain: Toolchain, directory: Path) -> None:
    """Refuse packages of individual uploaders that differ from those we tested."""
    if not toolchain.install.integrity:
        return
    installed = json.loads((directory / "node_modules/.package-lock.json").read_text())["packages"]
    for package, wanted in toolchain.install.integrity.items():
        found = installed.get(f"node_modules/{package}", {}).get("integrity")
        if found != wanted:
            shutil.rmtree(directory / "node_modules", ignore_errors=True)
            raise SandboxFault(f"npm brought another {package} than the one that was tried ({found}); it is removed")
