"""Guest environments: each a Python of its own, with the packages programs may use.

What makes a directory an environment is its `environment.json`, written last and by rename. Whatever was
interrupted before that has none, and is swept away by whoever builds next.

One build at a time: the builder holds `NAME.lock`, and so does every program it starts, by inheriting the descriptor.
A builder that was killed outright can leave its installer running for a moment; the next builder waits for that one
too, instead of building in a directory somebody still writes to.

Guests see the tree read-only and as nobody. So bytecode and matplotlib's font list, which Python and matplotlib
would otherwise write when first needed, are made here, and everything is readable by all.
"""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from belljar.contract.errors import (
    CallerError,
    EnvironmentBroken,
    InvalidSettings,
    Overloaded,
    UnknownEnvironment,
)
from belljar.settings import EnvironmentSettings, check_environment_name

Progress = Callable[[str], None]  # takes one line; an exception from it abandons the build

OLDEST_PYTHON = (3, 9)

_METADATA = "environment.json"
_METADATA_FORMAT = 1
_PREVIOUS = ".previous-"  # an environment moved aside while its replacement is built; no name starts with a dot
_OUTPUT_LINES_KEPT = 20
_LINE_CHARACTERS_MAX = 2000

#: A jail shows these to every program, whatever its environment.
_SYSTEM_DIRECTORIES = tuple(map(Path, ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")))

#: Packages whose name is not that of the module they bring.
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

#: Options that would send the packages, or the installer, to some other place than the environment.
_MISPLACING_VARIABLES = (
    *("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER", "PIP_PYTHON", "PIP_DRY_RUN"),
    *("UV_PYTHON", "UV_SYSTEM_PYTHON", "UV_WORKING_DIRECTORY", "UV_WORKING_DIR", "UV_PROJECT"),
)

#: Parts of a Python's library directory that are large and that programs do not import, or that are not its own.
_STDLIB_NOT_COMPILED = ("site-packages", "test", "idlelib", "lib2to3", "turtledemo")


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """A finished guest environment."""

    name: str
    root: Path
    python: Path
    version: str
    bound_paths: tuple[Path, ...]  # what a jail must show read-only, beside the system's own directories
    packages: tuple[tuple[str, str], ...]
    warm_imports: tuple[str, ...]
    built_at: str

    @property
    def matplotlib_config(self) -> Path:
        """Where the ready-made font list is, if matplotlib is installed.

        matplotlib takes no MPLCONFIGDIR it cannot write to: it warns and lists the fonts anew. Give it a writable
        directory that holds a symlink to each file in here.
        """
        return _matplotlib_config(self.root)


class Environments:
    """The environments under one state directory; safe to use from several threads and processes."""

    def __init__(
        self,
        state_dir: Path,
        configured: Mapping[str, EnvironmentSettings],
        environ: Mapping[str, str] | None = None,
    ) -> None:
        # Resolved once, so that no path an environment records leads through a symlink that a jail would lack.
        self._directory = state_dir.resolve() / "environments"
        self._configured = dict(configured)
        self._environ = dict(os.environ if environ is None else environ)

    def known(self) -> list[str]:
        """Names that are configured or built, sorted."""
        with_metadata = (path.parent.name for path in self._directory.glob(f"*/{_METADATA}"))
        built = {name.removeprefix(_PREVIOUS) for name in with_metadata}
        return sorted({*self._configured, *filter(_is_safe_name, built)})

    def find(self, name: str) -> Environment | None:
        """The environment of that name if it is built and nothing it needs has gone; looks, never builds."""
        try:
            record = self._read(name)
        except EnvironmentBroken:
            return None
        return record.environment if record else None

    def require(self, name: str) -> Environment:
        """The environment of that name; never builds.

        Raises:
            UnknownEnvironment: it is neither configured nor built.
            EnvironmentBroken: it is not built yet, or something it needs has gone.
        """
        record = self._read(name)
        if record:
            return record.environment
        if name not in self.known():
            raise self._unknown(name)
        raise EnvironmentBroken(
            f"environment {name!r} is not built yet; build it with: belljar env create {name}", environment=name
        )

    def ensure(self, name: str, progress: Progress) -> Environment:
        """The environment of that name, built now if it is configured but was not built yet.

        Raises:
            UnknownEnvironment: it is neither configured nor built.
            EnvironmentBroken: it cannot be built, or something it needs has gone.
        """
        record = self._read(name)
        configured = self._configured.get(name)
        if record:
            if configured and record.spec_digest != _digest(configured):
                progress(f"the settings of environment {name!r} have changed since it was built; {_rebuild(name)}")
            return record.environment
        if name not in self.known():
            raise self._unknown(name)
        if configured:
            _check(name, configured)
        with self._locked(name, progress) as lock:
            self._sweep(name)
            record = self._read(name)
            if record:
                return record.environment
            if configured is None:
                raise self._unknown(name)
            return self._build(name, configured, progress, lock)

    def create(self, name: str, spec: EnvironmentSettings, progress: Progress, replace: bool = False) -> Environment:
        """Build an environment; one already built to the same `spec` is returned as it is, unless `replace`.

        With `replace`, the one there was comes back if the new one cannot be built.

        Raises:
            InvalidSettings: the name or the `spec` cannot be used.
            CallerError: it exists, built to another `spec`, and `replace` is not given.
            EnvironmentBroken: it cannot be built, or the one there is broken and `replace` is not given.
        """
        _check(name, spec)
        asked_at = _now()
        with self._locked(name, progress) as lock:
            self._sweep(name)
            try:
                record = self._read(name)
            except EnvironmentBroken:
                if not replace:
                    raise
                record = None
            if (
                record
                and record.spec_digest == _digest(spec)
                and (not replace or record.environment.built_at >= asked_at)
            ):
                return record.environment  # with `replace`: built by another process while this one waited
            if record and not replace:
                raise CallerError(f"environment {name!r} exists with other settings; {_rebuild(name)}")
            return self._build(name, spec, progress, lock)

    def remove(self, name: str) -> None:
        """Delete what was built under that name, finished or not.

        Raises:
            UnknownEnvironment: nothing is built under that name.
            Overloaded: it is being built right now.
        """
        places = (self._previous(name), self._directory / name) if _is_safe_name(name) else ()
        if not any(map(os.path.lexists, places)):
            raise self._unknown(name, "there is no environment {} to remove")
        with self._locked(name, progress=None):
            try:
                for place in places:
                    # First what makes it an environment: a removal cut short must not leave one with holes.
                    (place / _METADATA).unlink(missing_ok=True)
                    if place.exists():
                        shutil.rmtree(place)
            except OSError as error:
                raise EnvironmentBroken(f"environment {name!r} cannot be removed: {error}", environment=name) from error

    def _previous(self, name: str) -> Path:
        return self._directory / f"{_PREVIOUS}{name}"

    def _unknown(self, name: str, message: str = "there is no environment {}") -> UnknownEnvironment:
        known = self.known()
        return UnknownEnvironment(f"{message.format(repr(name))}; known are: {', '.join(known) or 'none'}", known=known)

    def _read(self, name: str) -> _Record | None:
        """What was built under that name, or None; raises EnvironmentBroken if it was finished but is no use now."""
        if not _is_safe_name(name):
            return None
        root = self._directory / name
        try:
            record = _Record.from_json(name, root, (root / _METADATA).read_text("utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise EnvironmentBroken(f"environment {name!r} cannot be read: {error}", environment=name) from error
        except (ValueError, TypeError, KeyError) as error:
            raise EnvironmentBroken(
                f"environment {name!r} was built by another version of Belljar, at another place, or is damaged; "
                + _rebuild(name),
                environment=name,
            ) from error
        for path in (record.environment.python, *record.environment.bound_paths):
            if not os.access(path, os.F_OK):
                raise EnvironmentBroken(
                    f"environment {name!r} needs {os.path.realpath(path)}, which is gone or out of reach "
                    f"(was the Python it was built from removed?); {_rebuild(name)}",
                    environment=name,
                )
        return record

    @contextmanager
    def _locked(self, name: str, progress: Progress | None) -> Iterator[int]:
        """Hold the lock of that name and yield its descriptor; without `progress`, refuse to wait for it."""
        path = self._directory / f"{name}.lock"
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        except OSError as error:
            raise EnvironmentBroken(
                f"cannot write to {self._directory}: {error.strerror}; "
                "choose a state_dir that this user may write to, or run as the user who owns it",
                environment=name,
            ) from error
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                holder = os.pread(lock, 20, 0).decode("ascii", "replace") or "unknown"
                if progress is None:
                    raise Overloaded(
                        f"environment {name!r} is being built by process {holder}; try again when that is done"
                    ) from error
                progress(f"waiting for process {holder}, which is building environment {name!r}")
                fcntl.flock(lock, fcntl.LOCK_EX)
            os.ftruncate(lock, 0)
            os.pwrite(lock, str(os.getpid()).encode(), 0)
            yield lock
        finally:
            # Not left to close(): something a package's set-up left behind may have inherited the descriptor.
            fcntl.flock(lock, fcntl.LOCK_UN)
            os.close(lock)

    def _sweep(self, name: str) -> None:
        """Remove what an interrupted build left, and bring back what it was to replace; the lock is held."""
        root, previous = self._directory / name, self._previous(name)
        try:
            if os.path.lexists(root) and not (root / _METADATA).exists():
                shutil.rmtree(root)
            if previous.exists():
                if root.exists():
                    shutil.rmtree(previous)
                else:
                    previous.rename(root)
        except OSError as error:
            raise EnvironmentBroken(
                f"the remains of an interrupted build of environment {name!r} cannot be removed: {error}",
                environment=name,
            ) from error

    def _build(self, name: str, spec: EnvironmentSettings, progress: Progress, lock: int) -> Environment:
        """Build in place of whatever is there, or leave that as it was; the lock is held and the place swept."""
        started = time.monotonic()
        root = self._directory / name
        try:
            if root.exists():
                root.rename(self._previous(name))
            build = _Build(
                name=name, root=root, spec=spec, progress=progress, lock=lock, environ=_installer_environ(self._environ)
            )
            environment = build.run(self._environ)
            _write_atomically(root / _METADATA, _Record(environment=environment, spec_digest=_digest(spec)).to_json())
        except BaseException as error:
            with suppress(EnvironmentBroken):  # the next build tries again; the first error is the one to show
                self._sweep(name)
            if isinstance(error, OSError):
                raise EnvironmentBroken(f"environment {name!r} cannot be built: {error}", environment=name) from error
            raise
        with suppress(EnvironmentBroken):  # what was replaced may stay until the next build
            self._sweep(name)
        progress(f"environment {name!r} is ready after {time.monotonic() - started:.1f} s")
        return environment


@dataclass(frozen=True, slots=True, kw_only=True)
class _Record:
    """What `environment.json` holds: the environment, and what it was asked to be.

    The latter only as a digest: guests can read the file, and a package may be given by an address with a password.
    """

    environment: Environment
    spec_digest: str

    def to_json(self) -> str:
        """The text of the file."""
        tree = {"format": _METADATA_FORMAT, **dataclasses.asdict(self)}
        return json.dumps(tree, indent=1, default=str) + "\n"

    @classmethod
    def from_json(cls, name: str, root: Path, text: str) -> _Record:
        """Raises ValueError, TypeError or KeyError unless `text` was written for this name and place."""
        tree = json.loads(text)
        stored = tree["environment"]
        environment = Environment(
            name=stored["name"],
            root=Path(stored["root"]),
            python=Path(stored["python"]),
            version=stored["version"],
            bound_paths=tuple(map(Path, stored["bound_paths"])),
            packages=tuple((package, version) for package, version in stored["packages"]),
            warm_imports=tuple(stored["warm_imports"]),
            built_at=stored["built_at"],
        )
        if tree["format"] != _METADATA_FORMAT or (environment.name, environment.root) != (name, root):
            raise ValueError("written for another format, name or place")
        if not re.fullmatch(r"\d+\.\d+\.\d+", environment.version):
            raise ValueError("not a version of Python")
        return cls(environment=environment, spec_digest=tree["spec_digest"])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Build:
    """One build, from nothing to everything but the metadata."""

    name: str
    root: Path
    spec: EnvironmentSettings
    progress: Progress
    lock: int
    environ: Mapping[str, str]

    @property
    def python(self) -> Path:
        return self.root / "bin/python"

    def run(self, environ: Mapping[str, str]) -> Environment:
        """Do every step; `environ` is the builder's own, to look programs up in."""
        version, base_python = _choose_interpreter(self.spec.python, environ)
        uv = _find_uv(environ)
        self.progress(f"creating the interpreter: Python {version} from {base_python}")
        self._create_interpreter(base_python, uv)
        if self.spec.packages:
            self.progress(_without_passwords(f"installing {', '.join(self.spec.packages)}"))
            self._install(uv)
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
            bound_paths=_bound_paths(self.root, proof["paths"], environ.get("HOME", "")),
            packages=tuple((package, version) for package, version in proof["packages"]),
            warm_imports=self.spec.warm_imports,
            built_at=_now(),
        )

    def _create_interpreter(self, base_python: str, uv: str | None) -> None:
        if uv:
            argv = [uv, "venv", "--quiet", "--no-project", "--python", base_python, str(self.root)]
            remedy = "see what uv says above"
        else:
            argv = [base_python, "-I", "-m", "venv", str(self.root)]
            remedy = "install Python's venv module (on Debian: apt install python3-venv), or uv"
        self._step("its interpreter cannot be created", argv, remedy)

    def _install(self, uv: str | None) -> None:
        if uv:
            # Copies, not links into uv's cache: what guests run must not change, nor change modes, with the cache.
            argv = [uv, "pip", "install", "--link-mode", "copy", "--python", str(self.python)]
        else:
            argv = [str(self.python), "-I", "-u", "-m", "pip", "install", "--no-input", "--disable-pip-version-check"]
            argv += ["--no-compile", "--progress-bar", "off"]
        remedy = f"check the package names and the way to the package index, then: belljar env create {self.name}"
        self._step("its packages cannot be installed", [*argv, *self.spec.packages], remedy)

    def _prove(self) -> dict[str, Any]:
        """Import what must be importable, and learn from inside where everything is.

        Packages run their own code here, so they get what a guest would have: no HOME of ours, no index passwords.
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
            "MPLCONFIGDIR": str(_matplotlib_config(self.root)),
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
        """Compile all that can be; packages may carry files that no Python compiles.

        Some distributed Pythons come without bytecode. Theirs is compiled too, where we may write, as their first
        user's import would.
        """
        paths = [str(self.root / "lib")]
        if not _is_below(Path(stdlib), _SYSTEM_DIRECTORIES) and os.access(stdlib, os.W_OK):
            paths += [entry.path for entry in os.scandir(stdlib) if entry.name not in _STDLIB_NOT_COMPILED]
        argv = [str(self.python), "-I", "-W", "ignore", "-m", "compileall", "-qq"]
        environ = {"PATH": os.defpath, "LANG": self.environ["LANG"]}  # packages run code at every start, by .pth files
        failed, _ = _stream([*argv, "-j", "0", *paths], environ, self.lock, _say_nothing)
        if failed:  # a file that does not compile, or no way to start workers; the second pass does what is missing
            _stream([*argv, *paths], environ, self.lock, _say_nothing)

    def _step(self, failure: str, argv: Sequence[str], remedy: str, environ: Mapping[str, str] | None = None) -> None:
        status, tail = _stream(argv, environ or self.environ, self.lock, self.progress)
        if status:
            ended = f"signal {-status}" if status < 0 else f"exit code {status}"
            output = "\n".join(f"  {line}" for line in tail)
            raise EnvironmentBroken(
                f"environment {self.name!r} cannot be built: {failure} ({Path(argv[0]).name}: {ended})\n"
                f"{output}\nwhat to do: {remedy}",
                environment=self.name,
                output=tail,
            )


#: Runs in the new environment: imports, then writes down what it found. Must stay readable to Python 3.9.
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

#: Must run on any Python, to say which one is too old. Before 3.11, `_base_executable` in a venv may be the venv's own.
_VERSION_PROBE = """
import json, os, sys
base, prefix = getattr(sys, "_base_executable", None) or sys.executable, getattr(sys, "base_prefix", sys.prefix)
if base == sys.executable and prefix != sys.prefix:
    base = os.path.join(prefix, "bin", "python%d.%d" % sys.version_info[:2])
print(json.dumps([sys.version_info[:3], os.path.realpath(base)]))
"""


def _choose_interpreter(wanted: str, environ: Mapping[str, str]) -> tuple[str, str]:
    """The version and real path of the Python to build from.

    The real path, because every symlink on the way would have to exist in the jail as well.
    """
    version_wanted = re.fullmatch(r"(?:python)?(\d+(?:\.\d+){0,2})", wanted)
    prefix = [int(part) for part in version_wanted[1].split(".")] if version_wanted else []
    for candidate in _interpreter_candidates(wanted, version_wanted[1] if version_wanted else "", environ):
        found = _ask_interpreter(candidate, environ)
        if found is None or found[0][: len(prefix)] != prefix:
            continue
        version = ".".join(map(str, found[0]))
        if tuple(found[0][:2]) < OLDEST_PYTHON:
            oldest = ".".join(map(str, OLDEST_PYTHON))
            raise EnvironmentBroken(
                f"a guest environment needs Python {oldest} or later; {candidate} is Python {version}", python=candidate
            )
        return version, found[1]
    raise EnvironmentBroken(
        f"there is no working Python for {wanted!r} here; give the path of one, the name of one on PATH, "
        "or a version such as 3.12 that is on PATH or installed by pyenv",
        python=wanted,
    )


def _interpreter_candidates(wanted: str, version: str, environ: Mapping[str, str]) -> Iterator[str]:
    if not wanted:
        # Ours may be a venv's, which can be deleted under the environments built from it.
        yield getattr(sys, "_base_executable", "") or sys.executable
    elif "/" in wanted:
        yield environ.get("HOME", "") + wanted[1:] if wanted.startswith("~/") else wanted
    else:
        name = "python" + ".".join(version.split(".")[:2]) if version else wanted
        on_path = shutil.which(name, path=environ.get("PATH", os.defpath))
        if on_path:
            yield on_path  # may be pyenv's stand-in, which only works for versions switched on: hence what follows
        if version:
            pyenv = Path(environ.get("PYENV_ROOT") or environ.get("HOME", "/") + "/.pyenv")
            yield from (str(path / "bin/python") for path in _pyenv_versions(pyenv, version))


def _pyenv_versions(pyenv: Path, version: str) -> list[Path]:
    """Newest first; 3.1 stands for 3.1.4 but not for 3.13."""
    found = [path for path in pyenv.glob(f"versions/{version}*") if re.match(r"[.-]|$", path.name[len(version) :])]
    return sorted(found, key=lambda path: [int(number) for number in re.findall(r"\d+", path.name)], reverse=True)


def _ask_interpreter(candidate: str, environ: Mapping[str, str]) -> tuple[list[int], str] | None:
    try:
        version, path = json.loads(_ask([candidate, "-E", "-s", "-c", _VERSION_PROBE], environ) or "")
    except ValueError:
        return None
    return version, path


def _find_uv(environ: Mapping[str, str]) -> str | None:
    """uv, if there is one that starts; what a version switcher puts on PATH may not."""
    uv = shutil.which("uv", path=environ.get("PATH", os.defpath))
    return uv if uv and _ask([uv, "--version"], environ) else None


def _ask(argv: Sequence[str], environ: Mapping[str, str]) -> bytes | None:
    """What a program prints, or None if it does not work."""
    try:
        asked = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            cwd="/",
            env=_installer_environ(environ),
            timeout=60,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return asked.stdout if asked.returncode == 0 else None


def _installer_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """What an installer needs to reach its index, and nothing else: a package's set-up is somebody else's code."""

    def is_passed(name: str) -> bool:
        if name.startswith("UV_PUBLISH_") or name in _MISPLACING_VARIABLES:
            return False
        return (
            name in ("PATH", "HOME", "LANG")
            or name.lower() in ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
            or name.startswith(("PIP_", "UV_", "SSL_"))
        )

    passed = {name: value for name, value in environ.items() if is_passed(name)}
    return {"PATH": os.defpath, "LANG": "C.UTF-8", **passed, "NO_COLOR": "1"}


def _stream(argv: Sequence[str], environ: Mapping[str, str], lock: int, progress: Progress) -> tuple[int, list[str]]:
    """Run a program to its end, passing its lines on; return its status and last lines. None of it is left behind."""
    tail: deque[str] = deque(maxlen=_OUTPUT_LINES_KEPT)
    started = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd="/",  # no project's or package's files there to be picked up
        env=dict(environ),
        start_new_session=True,
        pass_fds=(lock,),
        encoding="utf-8",
        errors="replace",
    )
    assert started.stdout is not None
    try:
        for line in started.stdout:
            shown = _without_passwords(line.rstrip()[:_LINE_CHARACTERS_MAX])
            if shown:
                tail.append(shown)
                progress(shown)
        os.waitid(os.P_PID, started.pid, os.WEXITED | os.WNOWAIT)
    finally:
        # Before it is reaped: until then nobody else can have its process group's number.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(started.pid, signal.SIGKILL)
        started.stdout.close()
        started.wait()
    return started.returncode, list(tail)


def _bound_paths(root: Path, found: Iterable[str], home: str) -> tuple[Path, ...]:
    """The fewest directories that hold all those found, by their own names and by their real ones.

    A Python installed straight into a home directory, or into /opt, would show all of it to every program. Such a
    prefix is left out; the parts of it that were found are in the list by themselves.
    """
    private = [root.parent] + ([Path(home).resolve()] if home else [])
    candidates = {root, *map(Path, found), *(Path(path).resolve() for path in found)}
    bound: list[Path] = []
    for path in sorted(candidates, key=lambda path: len(path.parts)):
        is_too_wide = len(path.parts) <= 2 or any(each.is_relative_to(path) for each in private)
        if not is_too_wide and not _is_below(path, (*_SYSTEM_DIRECTORIES, *bound)):
            bound.append(path)
    return tuple(sorted(bound))


def _is_below(path: Path, directories: Iterable[Path]) -> bool:
    return any(path.is_relative_to(directory) for directory in directories)


def _open_to_all(root: Path) -> None:
    """chmod -R go+rX; symlinks are left alone, they lead out of the tree."""
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


def _check(name: str, spec: EnvironmentSettings) -> None:
    if not _is_safe_name(name):
        check_environment_name(name)
        raise InvalidSettings(f"environment name {name!r} must not end in .lock")
    for package in spec.packages:
        if package.startswith("-") or not package.strip():
            raise InvalidSettings(f"environment {name!r}: {package!r} is not a package name")
    for module in spec.warm_imports:
        if not all(part.isidentifier() for part in module.split(".")):
            raise InvalidSettings(f"environment {name!r}: {module!r} is not a module name")


def _is_safe_name(name: str) -> bool:
    """Whether `name` can be a directory beside the lock files."""
    try:
        check_environment_name(name)
    except InvalidSettings:
        return False
    return not name.endswith(".lock")


def _matplotlib_config(root: Path) -> Path:
    return root / "share/matplotlib-config"


def _rebuild(name: str) -> str:
    return f"rebuild with: belljar env create {name} --replace"


def _say_nothing(_line: str) -> None:
    pass


def _digest(spec: EnvironmentSettings) -> str:
    return hashlib.sha256(json.dumps(dataclasses.asdict(spec), sort_keys=True).encode()).hexdigest()


def _without_passwords(line: str) -> str:
    return re.sub(r"://[^/@\s]+@", "://****@", line)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _write_atomically(path: Path, text: str) -> None:
    temporary = path.with_suffix(".new")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.chmod(0o644)
    temporary.rename(path)
