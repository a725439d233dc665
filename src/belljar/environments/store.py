"""The store of environments: finds, builds and removes them by name, in one state directory.

A directory is an environment if it holds `environment.json`, which is written last, by rename. An interrupted build
leaves none, and the next build sweeps its remains away.

The builder holds `NAME.lock`, and so does every program it starts, by inheriting the descriptor. A builder that was
killed can leave its installer running for a moment; the next builder waits for that one, too.
"""

from __future__ import annotations

import asyncio
import dataclasses
import fcntl
import hashlib
import json
import os
import re
import shutil
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from belljar.contract.errors import CallerError, EnvironmentBroken, InvalidSettings, Overloaded, UnknownEnvironment
from belljar.environments.build import Build, Environment, Progress, now
from belljar.environments.interpreters import installer_environ
from belljar.environments.programs import LOOK_SECONDS, Check, go_on
from belljar.settings import EnvironmentSettings, check_environment_name

_METADATA = "environment.json"
_METADATA_FORMAT = 1
_PREVIOUS = ".previous-"  # prefix of an environment that is being replaced; no name starts with a dot
_SCRATCH = ".scratch-"  # temporary files of the installer, which does not tidy up when killed


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
        """Return the environment of that name if it is built and complete, else None; never builds."""
        try:
            record = self._read(name)
        except EnvironmentBroken:
            return None
        return record.environment if record else None

    def require(self, name: str) -> Environment:
        """Return the environment of that name; never builds.

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

    def ensure(self, name: str, progress: Progress, check: Check = go_on) -> Environment:
        """Return the environment of that name; build it if it is configured but not built yet.

        An exception from `check` or `progress` abandons the build; nothing is left of it.

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
        with self._locked(name, progress, check) as lock:
            self._sweep(name)
            record = self._read(name)
            if record:
                return record.environment
            if configured is None:
                raise self._unknown(name)
            return self._build(name, configured, progress, lock, check)

    def create(self, name: str, spec: EnvironmentSettings, progress: Progress, replace: bool = False) -> Environment:
        """Build an environment; one already built to the same `spec` is returned as it is, unless `replace`.

        With `replace`, the old one is restored if the new one cannot be built.

        Raises:
            InvalidSettings: the name or the `spec` cannot be used.
            CallerError: it exists with another `spec`, and `replace` is not given.
            EnvironmentBroken: it cannot be built, or the existing one is broken and `replace` is not given.
        """
        _check(name, spec)
        asked_at = now()
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
        places = (self._scratch(name), self._previous(name), self._directory / name) if _is_safe_name(name) else ()
        if not any(map(os.path.lexists, places)):
            raise self._unknown(name, "environment {} is not built")
        with self._locked(name, progress=None):
            try:
                for place in places:
                    # First its metadata: an interrupted removal must not leave an incomplete environment.
                    (place / _METADATA).unlink(missing_ok=True)
                    if place.exists():
                        shutil.rmtree(place)
            except OSError as error:
                raise EnvironmentBroken(f"environment {name!r} cannot be removed: {error}", environment=name) from error

    def _previous(self, name: str) -> Path:
        return self._directory / f"{_PREVIOUS}{name}"

    def _scratch(self, name: str) -> Path:
        return self._directory / f"{_SCRATCH}{name}"

    def _unknown(self, name: str, message: str = "unknown environment {}") -> UnknownEnvironment:
        known = self.known()
        return UnknownEnvironment(
            f"{message.format(repr(name))}; choose from: {', '.join(known) or 'none'}", known=known
        )

    def _read(self, name: str) -> _Record | None:
        """Return the record of what was built, or None; raise EnvironmentBroken if it can no longer be used."""
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
    def _locked(self, name: str, progress: Progress | None, check: Check = go_on) -> Iterator[int]:
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
                _wait_for_lock(lock, check)
            os.ftruncate(lock, 0)
            os.pwrite(lock, str(os.getpid()).encode(), 0)
            yield lock
        finally:
            # Unlocked explicitly: a process that a package's set-up left behind may have inherited the descriptor.
            fcntl.flock(lock, fcntl.LOCK_UN)
            os.close(lock)

    def _sweep(self, name: str) -> None:
        """Remove what an interrupted build left, and restore what it was to replace; the lock is held."""
        root, previous, scratch = self._directory / name, self._previous(name), self._scratch(name)
        try:
            if scratch.exists():
                shutil.rmtree(scratch)
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

    def _build(
        self, name: str, spec: EnvironmentSettings, progress: Progress, lock: int, check: Check = go_on
    ) -> Environment:
        """Replace what is there with a new build, or leave it as it was; the lock is held."""
        started = time.monotonic()
        root, scratch = self._directory / name, self._scratch(name)
        try:
            if root.exists():
                root.rename(self._previous(name))
            scratch.mkdir(mode=0o700)
            build = Build(
                name=name,
                root=root,
                spec=spec,
                progress=progress,
                check=check,
                lock=lock,
                environ={**installer_environ(self._environ), "TMPDIR": str(scratch)},
            )
            environment = build.run(self._environ)
            _write_atomically(root / _METADATA, _Record(environment=environment, spec_digest=_digest(spec)).to_json())
        except BaseException as error:
            with suppress(EnvironmentBroken):  # the next build tries again; the first error is the one to show
                self._sweep(name)
            if isinstance(error, OSError):
                raise EnvironmentBroken(f"environment {name!r} cannot be built: {error}", environment=name) from error
            raise
        with suppress(EnvironmentBroken):  # the old environment may stay until the next build
            self._sweep(name)
        progress(f"environment {name!r} is ready after {time.monotonic() - started:.1f} s")
        return environment


async def ensure_unless_cancelled(environments: Environments, name: str, progress: Progress) -> Environment:
    """Run `Environments.ensure` in a thread. Cancelling ends the build and waits until nothing is left of it.

    An event loop that closes waits for its threads, so a build that went on would delay the exit by minutes.
    """
    is_unwanted = threading.Event()

    def check() -> None:
        if is_unwanted.is_set():
            raise _Unwanted

    building = asyncio.create_task(asyncio.to_thread(environments.ensure, name, progress, check))
    try:
        return await asyncio.shield(building)
    finally:
        is_unwanted.set()
        await asyncio.gather(building, return_exceptions=True)


class _Unwanted(Exception):
    """The task that waited for this build was cancelled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Record:
    """The content of `environment.json`: the environment, and a digest of its `spec`.

    Only a digest, because guests can read the file, and a package URL may contain a password.
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


def _wait_for_lock(lock: int, check: Check) -> None:
    while True:
        try:
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            check()
            time.sleep(LOOK_SECONDS)


def _is_safe_name(name: str) -> bool:
    """Whether `name` can be a directory beside the lock files."""
    try:
        check_environment_name(name)
    except InvalidSettings:
        return False
    return not name.endswith(".lock")


def _rebuild(name: str) -> str:
    return f"rebuild with: belljar env create {name} --replace"


def _digest(spec: EnvironmentSettings) -> str:
    return hashlib.sha256(json.dumps(dataclasses.asdict(spec), sort_keys=True).encode()).hexdigest()


def _write_atomically(path: Path, text: str) -> None:
    temporary = path.with_suffix(".new")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.chmod(0o644)
    temporary.rename(path)
