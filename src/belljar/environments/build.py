"""Builds one environment: interpreter, packages, an import test, and bytecode.

Guests see the tree read-only and under an unprivileged uid. So bytecode and matplotlib's font list, which would
otherwise be written on first use, are created here, and everything is made world-readable.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from belljar.contract.errors import EnvironmentBroken
from belljar.environments.interpreters import SYSTEM_DIRECTORIES, bound_paths, choose_interpreter, find_uv, is_below
from belljar.environments.programs import Check, run
from belljar.settings import EnvironmentSettings

Progress = Callable[[str], None]  # takes one line; an exception from it abandons the build

_OUTPUT_LINES_KEPT = 20

#: Packages whose name differs from that of their module.
_PACKAGE_OF_MODULE = {
    "IPython": "ipython",
    "PIL": "pillow",
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python-headless",
    "dateutil": "python-dateutil",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}

#: The directory of matplotlib's prebuilt font list. matplotlib rejects a read-only MPLCONFIGDIR: it warns and lists the
#: fonts again. So the zygote gives it a writable directory that holds a symlink to each file in here.
MATPLOTLIB_CONFIG = "share/matplotlib-config"

#: Packages that Belljar itself uses beside a program, kept off its import path; see `inside/guest/coverage.py`.
_INSTRUMENTS = ("coverage",)

#: Parts of Python's library directory that are not compiled: large and not imported by programs, or not its own.
_STDLIB_NOT_COMPILED = ("site-packages", "test", "idlelib", "lib2to3", "turtledemo")


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """A finished guest environment."""

    name: str
    root: Path
    python: Path
    version: str
    bound_paths: tuple[Path, ...]  # shown read-only in a jail, in addition to the system's directories
    packages: tuple[tuple[str, str], ...]
    warm_imports: tuple[str, ...]
    built_at: str

    @property
    def measures_coverage(self) -> bool:
        """Whether coverage.py is installed; environments without packages, and those of earlier versions, lack it."""
        return (_instruments(self.root) / "coverage").is_dir()


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """One build: every step except writing the metadata."""

    name: str
    root: Path
    spec: EnvironmentSettings
    progress: Progress
    check: Check
    lock: int
    environ: Mapping[str, str]

    @property
    def python(self) -> Path:
        return self.root / "bin/python"

    def run(self, environ: Mapping[str, str]) -> Environment:
        """Run every step; `environ` is the builder's own, used to find programs."""
        version, base_python = choose_interpreter(self.spec.python, environ, self.check)
        uv = find_uv(environ, self.check)
        self.progress(f"creating the interpreter: Python {version} from {base_python}")
        self._create_interpreter(base_python, uv)
        if self.spec.packages:
            self.progress(_without_passwords(f"installing {', '.join(self.spec.packages)}"))
            self._install(uv)
            self._install_instruments(uv)
        if self.spec.warm_imports:
            self.progress(f"trying {', '.join(self.spec.warm_imports)}")
        proof = self._prove()
        self.progress("compiling bytecode")
        self._compile(proof["stdlib"])
        _open_to_all(self.root)
        return Environment(
            name=self.name,
            root=self.root,
            python=self.python,
            version=version,
            bound_paths=bound_paths(self.root, proof["paths"], environ.get("HOME", "")),
            packages=tuple((package, version) for package, version in proof["packages"]),
            warm_imports=self.spec.warm_imports,
            built_at=now(),
        )

    def _create_interpreter(self, base_python: str, uv: str | None) -> None:
        if uv:
            argv = [uv, "venv", "--quiet", "--no-project", "--python", base_python, str(self.root)]
            remedy = "see what uv says above"
        else:
            argv = [base_python, "-I", "-m", "venv", str(self.root)]
            remedy = "install Python's venv module (on Debian: apt install python3-venv), or uv"
        self._step("its interpreter cannot be created", argv, remedy)

    def _installer(self, uv: str | None) -> list[str]:
        if uv:
            # Copies, not links into uv's cache: what guests run must not change with the cache.
            return [uv, "pip", "install", "--link-mode", "copy", "--python", str(self.python)]
        argv = [str(self.python), "-I", "-u", "-m", "pip", "install", "--no-input", "--disable-pip-version-check"]
        return [*argv, "--no-compile", "--progress-bar", "off"]

    def _install(self, uv: str | None) -> None:
        argv = self._installer(uv)
        remedy = f"check the package names and the connection to the index, then: belljar env create {self.name}"
        self._step("its packages cannot be installed", [*argv, *self.spec.packages], remedy)

    def _install_instruments(self, uv: str | None) -> None:
        """Install what coverage needs. If the index lacks it, everything else works, and coverage is refused."""
        argv = [*self._installer(uv), "--target", str(_instruments(self.root)), *_INSTRUMENTS]
        status, _ = self._stream(argv, self.environ, _ignore)
        if status:
            shutil.rmtree(_instruments(self.root), ignore_errors=True)
            self.progress(f"{', '.join(_INSTRUMENTS)} cannot be installed: coverage cannot be measured here")

    def _prove(self) -> dict[str, Any]:
        """Import the warm imports in the new interpreter, and have it report its paths and packages.

        Packages run their own code here, so the process gets no HOME and no index passwords.
        """
        scratch = self.root / ".scratch"
        scratch.mkdir()
        answer = scratch / "answer.json"
        environ = {
            "PATH": f"{self.python.parent}:{os.defpath}",
            "LANG": self.environ["LANG"],
            "HOME": str(scratch),
            "TMPDIR": str(scratch),
            "MPLBACKEND": "agg",
            "MPLCONFIGDIR": str(self.root / MATPLOTLIB_CONFIG),
        }
        argv = [str(self.python), "-I", "-c", _PROOF, str(answer), *self.spec.warm_imports]
        self._step("it does not start", argv, "try other versions of its packages", environ)
        proof: dict[str, Any] = json.loads(answer.read_text("utf-8"))
        shutil.rmtree(scratch)
        if proof["failures"]:
            lines = [_explain_failure(**failure) for failure in proof["failures"]]
            raise EnvironmentBroken(
                f"environment {self.name!r} cannot be built: {'; '.join(lines)}", environment=self.name
            )
        return proof

    def _compile(self, stdlib: str) -> None:
        """Compile bytecode; files that do not compile are skipped, since packages may carry some.

        Some Python distributions come without bytecode. Theirs is compiled, too, where we may write.
        """
        paths = [str(self.root / "lib"), *(str(each) for each in [_instruments(self.root)] if each.is_dir())]
        if not is_below(Path(stdlib), SYSTEM_DIRECTORIES) and os.access(stdlib, os.W_OK):
            paths += [entry.path for entry in os.scandir(stdlib) if entry.name not in _STDLIB_NOT_COMPILED]
        argv = [str(self.python), "-I", "-W", "ignore", "-m", "compileall", "-qq"]
        environ = {"PATH": os.defpath, "LANG": self.environ["LANG"]}  # .pth files of packages run code at every start
        failed, _ = self._stream([*argv, "-j", "0", *paths], environ, _ignore)
        if failed:  # a file does not compile, or workers cannot start; the second pass does the rest
            self._stream([*argv, *paths], environ, _ignore)

    def _step(self, failure: str, argv: Sequence[str], remedy: str, environ: Mapping[str, str] | None = None) -> None:
        status, tail = self._stream(argv, environ or self.environ, self.progress)
        if status:
            ended = f"signal {-status}" if status < 0 else f"exit code {status}"
            output = "\n".join(f"  {line}" for line in tail)
            raise EnvironmentBroken(
                f"environment {self.name!r} cannot be built: {failure} ({Path(argv[0]).name}: {ended})\n"
                f"{output}\nwhat to do: {remedy}",
                environment=self.name,
                output=tail,
            )

    def _stream(self, argv: Sequence[str], environ: Mapping[str, str], progress: Progress) -> tuple[int, list[str]]:
        """Run a program to its end, pass its lines to `progress`, and return its status and last lines."""
        tail: deque[str] = deque(maxlen=_OUTPUT_LINES_KEPT)

        def on_line(line: str) -> None:
            shown = _without_passwords(line.rstrip())
            if shown:
                tail.append(shown)
                progress(shown)

        return run(argv, environ, self.lock, on_line, self.check), list(tail)


#: Runs in the new environment: imports, then reports what it found. Must run on Python 3.9.
_PROOF = """
import importlib, importlib.metadata, importlib.util, json, os, sys, sysconfig, traceback

answer, modules, failures = sys.argv[1], sys.argv[2:], []
if importlib.util.find_spec("matplotlib"):
    modules.append("matplotlib.font_manager")  # writes the font list
for module in modules:
    try:
        importlib.import_module(module)
    except BaseException as error:
        found = importlib.util.find_spec(module.partition(".")[0]) is not None
        if found:
            traceback.print_exc()
        failures.append({"module": module, "found": found, "error": type(error).__name__ + ": " + str(error)})
for module in ("ctypes", "sqlite3", "ssl"):  # for the libraries they load
    try:
        importlib.import_module(module)
    except ImportError:
        pass
with open("/proc/self/maps") as maps:
    libraries = {line.split(None, 5)[5].strip() for line in maps if ".so" in line}
stdlib = sysconfig.get_path("stdlib")
paths = {sys.base_prefix, sys.base_exec_prefix, stdlib, sysconfig.get_path("platstdlib")}
paths.update(map(os.path.dirname, [os.path.realpath(sys.executable), *libraries]))
paths.update(filter(os.path.isdir, sys.path))
packages = {each.metadata["Name"]: each.version for each in importlib.metadata.distributions()}
with open(answer, "w") as file:
    json.dump(
        {
            "failures": failures,
            "stdlib": stdlib,
            "paths": sorted(paths),
            "packages": sorted(packages.items(), key=lambda package: package[0].lower()),
        },
        file,
    )
"""


def _open_to_all(root: Path) -> None:
    """chmod -R go+rX, without symlinks: they point out of the tree."""
    for path in (root, *root.rglob("*")):
        mode = path.lstat().st_mode
        wanted = mode | (0o055 if mode & 0o100 else 0o044)
        if wanted != mode and not stat.S_ISLNK(mode):
            path.chmod(stat.S_IMODE(wanted))


def _explain_failure(module: str, found: bool, error: str) -> str:
    top = module.partition(".")[0]
    if found:
        return f"the warm import {module!r} fails with {error}"
    return f"the warm import {module!r} is not installed; add {_PACKAGE_OF_MODULE.get(top, top)!r} to its packages"


def _instruments(root: Path) -> Path:
    return root / "share/instruments"


def _ignore(_line: str) -> None:
    pass


def _without_passwords(line: str) -> str:
    return re.sub(r"://[^/@\s]+@", "://****@", line)


def now() -> str:
    """The current time in the format of `built_at`, which sorts as text."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
