"""Which toolchains are installed on this machine, as a jail sees them.

A language is looked up when a request names it, by the files it needs, and again every few seconds, so a running
server notices what is installed, replaced or removed. Only the version costs a process: it is found out when
languages are listed, once for each toolchain.

A toolchain is found where jails can see it: in the system's directories (never on the PATH of the server's user), in
the state directory, where `belljar languages install` puts npm and pip packages, or in another Debian root named by
`[languages.roots]`.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import glob
import hashlib
import json
import logging
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from belljar.contract.errors import SandboxFault, ToolchainMissing
from belljar.languages.toolchain import PYTHON_NAMES, TOOLCHAINS_DIR, Toolchain, load_all, load_one
from belljar.settings import Settings

_log = logging.getLogger("belljar.languages")

#: Where commands are looked for in the jail, after the guest environment's own.
COMMAND_DIRS = ("/usr/local/bin", "/usr/bin", "/bin")
_VISIBLE = ("/usr/", "/bin/", "/sbin/", "/lib/", "/lib32/", "/lib64/", "/etc/alternatives/")
_LOOK_AGAIN_SECONDS = 5.0
_PROBE_SECONDS = 30.0
_PREPARE_SECONDS = 300.0
_STAMP = ".made-for"
_PREPARED = "prepared"


def installed_toolchains(settings: Settings) -> InstalledToolchains:
    """The toolchains of this machine; one object for all callers, so that everything is looked up once."""
    return _machine(settings.state_dir, tuple(sorted(settings.languages.roots.items())))


@functools.lru_cache(maxsize=8)
def _machine(state_dir: Path, roots: tuple[tuple[str, str], ...]) -> InstalledToolchains:
    return InstalledToolchains(state_dir, dict(roots))


class Toolchains(Protocol):
    """Toolchains that programs can be compiled and run with: those of this machine, or those in images."""

    def check_available(self, name: str) -> None:
        """Raises ToolchainMissing if something that the toolchain needs is known to be missing."""

    def fingerprint(self, name: str) -> str:
        """A text that changes with the toolchain: compiled programs are reused only with the same one."""

    def root_of(self, name: str) -> str:
        """The root directory that contains this toolchain; empty for the system that programs see."""

    def places_read_by(self, toolchain: Toolchain) -> Mapping[str, str]:
        """The paths that this toolchain reads, besides the system's directories, and where they are on the host."""

    def find_command(self, toolchain: Toolchain, command: str) -> str:
        """What to execute in the jail for a command."""

    def make_ready(self, name: str) -> None:
        """Do what must be done before the toolchain's first run. May block."""

    def prepare_quietly(self, name: str) -> None:
        """Run the toolchain's `[prepare]` step; log a failure instead of raising. May block."""

    def is_prepared(self, name: str) -> bool:
        """Whether the toolchain's `[prepare]` step was done for the installed version."""


class InstalledToolchains:
    """The toolchains of this machine: `Toolchains`. Thread-safe: at worst something is looked up twice."""

    def __init__(self, state_dir: Path, roots: Mapping[str, str] | None = None) -> None:
        self.toolchains_dir = state_dir.resolve() / "toolchains"
        self._roots = dict(roots or {})
        self._found: dict[str, tuple[float, str]] = {}  # time of the look-up; fingerprint, empty if missing
        self._versions: dict[str, str | None] = {}  # by fingerprint
        self._ready: set[str] = set()  # fingerprints

    # ---- where things are

    def root_of(self, name: str) -> str:
        """The root directory that contains this toolchain; empty for this system."""
        return self._roots.get(name, "")

    def host_path(self, toolchain: Toolchain, path: str) -> str:
        """The path on the host of what the jail sees as `path`."""
        if path.startswith(f"{TOOLCHAINS_DIR}/"):
            return str(self.toolchains_dir) + path.removeprefix(TOOLCHAINS_DIR)
        return self.root_of(toolchain.name) + path

    def bound_places(self, root: str) -> dict[str, str]:
        """The paths that a jail for the toolchains in `root` shows, besides the system's directories."""
        places = {}
        with contextlib.suppress(OSError):
            self.toolchains_dir.mkdir(parents=True, exist_ok=True)  # so that what is prepared later is visible, too
        if self.toolchains_dir.is_dir():
            places[TOOLCHAINS_DIR] = str(self.toolchains_dir)
        for toolchain in load_all().values():
            if toolchain.name != "python" and self.root_of(toolchain.name) == root:
                places |= self.places_read_by(toolchain)
        return places

    def places_read_by(self, toolchain: Toolchain) -> dict[str, str]:
        """The paths that this toolchain reads, besides the system's directories."""
        root = self.root_of(toolchain.name)
        found = (path for pattern in toolchain.reads for path in glob.glob(root + pattern))
        return {path.removeprefix(root): path for path in found if os.path.isdir(path) and not os.path.islink(path)}

    # ---- what is there

    def is_available(self, name: str) -> bool:
        """Whether everything that the toolchain needs is installed."""
        return name in PYTHON_NAMES or bool(self._look(name))

    def _look(self, name: str) -> str:
        """The toolchain's fingerprint, empty if it is not installed; cached for a few seconds."""
        seen_at, fingerprint = self._found.get(name, (0.0, ""))
        if not fingerprint or time.monotonic() - seen_at > _LOOK_AGAIN_SECONDS:
            fingerprint = "" if self.find_missing(name) else self._describe(load_one(name))
            self._found[name] = time.monotonic(), fingerprint
        return fingerprint

    def find_missing(self, name: str) -> list[str]:
        """The files and commands that the toolchain lacks."""
        toolchain = load_one(name)
        root = self.root_of(name)
        if root and not os.path.isdir(root):
            return [root]
        needs = (*toolchain.needs, "python3") if root else toolchain.needs  # a Python process execs the program
        return [need for need in needs if not self._locate(toolchain, need)]

    def check_available(self, name: str) -> None:
        """Raises ToolchainMissing if something that the toolchain needs is not installed."""
        if not self.is_available(name):
            raise self.explain_missing(name)

    def explain_missing(self, name: str) -> ToolchainMissing:
        """The error for a request in a language that is not installed."""
        toolchain = load_one(name)
        missing = ", ".join(self.find_missing(name)) or "something"
        command = f"the operator can get it with: belljar languages install {name}"
        advice = command if toolchain.install.has_packages else toolchain.install.note
        return ToolchainMissing(
            f"{toolchain.title} is not installed here ({missing} is missing); {advice}",
            language=name,
        )

    def _locate(self, toolchain: Toolchain, need: str) -> list[str]:
        """The files on the host that match `need`; empty if it is missing."""
        if need.startswith("/"):
            return sorted(glob.glob(self.host_path(toolchain, need)))
        root = self.root_of(toolchain.name)
        for directory in COMMAND_DIRS:
            path = f"{root}{directory}/{need}"
            if root and os.path.lexists(path):
                return [path]
            if not root and os.access(path, os.X_OK) and f"{os.path.realpath(path)}".startswith(_VISIBLE):
                return [path]
        return []

    def fingerprint(self, name: str) -> str:
        """A text that changes with the toolchain: compiled programs are reused only with the same one."""
        return self._look(name) or self._describe(load_one(name))

    def _describe(self, toolchain: Toolchain) -> str:
        digest = hashlib.sha256(f"{self.root_of(toolchain.name)}\0{toolchain.text}".encode())
        for need in toolchain.needs:
            for path in self._locate(toolchain, need):
                digest.update(_describe_file(path))
        return digest.hexdigest()

    def find_command(self, toolchain: Toolchain, command: str) -> str:
        """The path of a command in the jail; a path, or a command that is not found, is returned as it is."""
        if "/" in command:
            return command
        found = self._locate(toolchain, command)
        return found[0].removeprefix(self.root_of(toolchain.name)) if found else command

    def forget(self, name: str) -> None:
        """Look again: the toolchain was just installed."""
        self._found.pop(name, None)

    # ---- versions

    def version(self, name: str) -> str | None:
        """The version that the toolchain reports; None if it is missing or reports none."""
        fingerprint = self._look(name)
        if fingerprint and fingerprint not in self._versions:
            self._versions[fingerprint] = self._ask_version(load_one(name))
        return self._versions.get(fingerprint)

    def versions(self, names: Iterable[str]) -> dict[str, str | None]:
        """The versions of several toolchains, asked in parallel."""
        with ThreadPoolExecutor(max_workers=4) as pool:
            wanted = list(names)
            return dict(zip(wanted, pool.map(self.version, wanted), strict=True))

    def _ask_version(self, toolchain: Toolchain) -> str | None:
        if not toolchain.probe:
            return None
        command = [
            self.host_path(toolchain, word) if word.startswith(f"{TOOLCHAINS_DIR}/") else word
            for word in toolchain.probe
        ]
        root = self.root_of(toolchain.name)
        if root:
            command = ["chroot", root, *command]
        try:
            with tempfile.TemporaryDirectory(prefix="belljar-probe-") as scratch:
                answer = subprocess.run(
                    command,
                    cwd=scratch,
                    env=_clean_environ(scratch, toolchain.env),
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    timeout=_PROBE_SECONDS,
                    check=False,
                )
        except (OSError, subprocess.TimeoutExpired) as error:
            _log.warning("%s does not report its version: %s", toolchain.name, error)
            return None
        found = toolchain.version_pattern.search((answer.stdout + b"\n" + answer.stderr).decode("utf-8", "replace"))
        return found[0] if found else None

    # ---- getting ready

    def make_ready(self, name: str) -> None:
        """Prepare a toolchain before its first run and read its files into memory. May block."""
        fingerprint = self.fingerprint(name)
        if fingerprint not in self._ready:
            toolchain = load_one(name)
            if toolchain.prepare is not None and not toolchain.prepare.optional:
                self.prepare_quietly(name)
            self._read_ahead(toolchain)
            self._ready.add(fingerprint)

    def is_prepared(self, name: str) -> bool:
        """Whether the toolchain's `[prepare]` step was done for the installed version."""
        return _read_stamp(self.toolchains_dir / name) == self.fingerprint(name)

    def prepare_quietly(self, name: str) -> None:
        """Call `prepare`; log a failure instead of raising, since the toolchain works without."""
        toolchain = load_one(name)
        try:
            self.prepare(toolchain)
        except (OSError, SandboxFault) as error:
            _log.warning("%s was not prepared: %s", name, error)

    def prepare(self, toolchain: Toolchain) -> None:
        """Run the toolchain's `[prepare]` step, unless it was done for the installed version.

        Raises:
            SandboxFault: a command failed.
            OSError: the state directory cannot be written to.
        """
        assert toolchain.prepare is not None
        own = self.toolchains_dir / toolchain.name
        wanted = self.fingerprint(toolchain.name)
        if self.is_prepared(toolchain.name):
            return
        own.mkdir(parents=True, exist_ok=True)
        locks = self.toolchains_dir.with_name("toolchain-locks")  # programs see `toolchains_dir`, and could lock it
        locks.mkdir(mode=0o700, exist_ok=True)
        with _locked(locks / toolchain.name):
            if _read_stamp(own) == wanted:
                return
            fresh = Path(tempfile.mkdtemp(prefix=".making-", dir=own))
            try:
                for path, content in toolchain.prepare.files.items():
                    (fresh / path).parent.mkdir(parents=True, exist_ok=True)
                    (fresh / path).write_text(content)
                for command in toolchain.prepare.commands:
                    self._run_preparation(toolchain, command, fresh)
                (fresh / _STAMP).write_text(wanted)
                make_readable(fresh)
                shutil.rmtree(own / _PREPARED, ignore_errors=True)
                fresh.rename(own / _PREPARED)
            finally:
                shutil.rmtree(fresh, ignore_errors=True)

    def _run_preparation(self, toolchain: Toolchain, command: tuple[str, ...], directory: Path) -> None:
        words = [word.replace("{root}", self.root_of(toolchain.name)) for word in command]
        with tempfile.TemporaryDirectory(prefix="belljar-prepare-") as scratch:
            try:
                made = subprocess.run(
                    words,
                    cwd=directory,
                    env=_clean_environ(scratch, toolchain.env),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    timeout=_PREPARE_SECONDS,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                raise SandboxFault(f"{words[0]} was not done after {_PREPARE_SECONDS:g} s") from None
        if made.returncode != 0:
            said = made.stdout.decode("utf-8", "replace").strip()[-500:]
            raise SandboxFault(f"{' '.join(words)} ended with {made.returncode}: {said}")

    def _read_ahead(self, toolchain: Toolchain) -> None:
        """Read the toolchain's large files into the page cache.

        The kernel charges a page of a file to the cgroup that reads it first. If that were a guest's, the page would
        count against the program's memory limit, and its jail could not be reused.
        """
        for need in (*toolchain.needs, *toolchain.warm):
            for path in self._locate(toolchain, need):
                with contextlib.suppress(OSError):
                    _read_file_ahead(os.path.realpath(path))


def _describe_file(path: str) -> bytes:
    try:
        facts = os.stat(path)
    except OSError:
        facts = os.lstat(path)
    return json.dumps([os.path.realpath(path), facts.st_size, facts.st_mtime_ns, facts.st_ino]).encode()


def _read_file_ahead(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_WILLNEED)
    finally:
        os.close(descriptor)


def _clean_environ(home: str, env: Mapping[str, str]) -> dict[str, str]:
    """An environment without the server's keys, and with the PATH of a jail."""
    own = {name: value for name, value in env.items() if "{" not in value and not value.startswith("/tmp")}
    path = ":".join(("/usr/local/sbin", "/usr/sbin", "/sbin", *COMMAND_DIRS))
    return {"LANG": "C.UTF-8", **own, "PATH": path, "HOME": home, "TMPDIR": home, "GOCACHE": f"{home}/gocache"}


def _read_stamp(own: Path) -> str | None:
    try:
        return (own / _PREPARED / _STAMP).read_text()
    except OSError:
        return None


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def make_readable(tree: Path) -> None:
    """Make the tree world-readable: guests have unprivileged uids."""
    for directory, _, names in os.walk(tree):
        os.chmod(directory, os.stat(directory).st_mode | 0o755)
        for name in names:
            path = f"{directory}/{name}"
            if not os.path.islink(path):
                mode = os.stat(path).st_mode
                os.chmod(path, mode | 0o444 | (0o111 if mode & 0o100 else 0))
