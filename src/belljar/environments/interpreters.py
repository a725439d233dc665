"""Finds the Python to build from, and the directories of it that a jail must show.

A command on PATH may be a version manager's shim that does not start, so every candidate (uv, too) is tried first,
with the same few environment variables that an installer gets.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from belljar.contract.errors import EnvironmentBroken
from belljar.environments.programs import Check, ask

OLDEST_PYTHON = (3, 9)

#: A jail shows these to every program, whatever its environment.
SYSTEM_DIRECTORIES = tuple(map(Path, ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")))

#: Options that would make the installer put packages somewhere other than into the environment.
_MISPLACING_VARIABLES = (
    *("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER", "PIP_PYTHON", "PIP_DRY_RUN"),
    *("UV_PYTHON", "UV_SYSTEM_PYTHON", "UV_WORKING_DIRECTORY", "UV_WORKING_DIR", "UV_PROJECT"),
)

#: Must run on any Python, even one that is too old. Before 3.11, `_base_executable` in a venv may be the venv's own.
_VERSION_PROBE = """
import json, os, sys
base, prefix = getattr(sys, "_base_executable", None) or sys.executable, getattr(sys, "base_prefix", sys.prefix)
if base == sys.executable and prefix != sys.prefix:
    base = os.path.join(prefix, "bin", "python%d.%d" % sys.version_info[:2])
print(json.dumps([sys.version_info[:3], os.path.realpath(base)]))
"""


def choose_interpreter(wanted: str, environ: Mapping[str, str], check: Check) -> tuple[str, str]:
    """The version and real path of the Python to build from.

    The real path, because every symlink on the way would have to exist in the jail as well.
    """
    version_wanted = re.fullmatch(r"(?:python)?(\d+(?:\.\d+){0,2})", wanted)
    prefix = [int(part) for part in version_wanted[1].split(".")] if version_wanted else []
    for candidate in _interpreter_candidates(wanted, version_wanted[1] if version_wanted else "", environ):
        found = _ask_interpreter(candidate, environ, check)
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
            yield on_path  # may be pyenv's shim, which works for active versions only; hence the next lines
        if version:
            pyenv = Path(environ.get("PYENV_ROOT") or environ.get("HOME", "/") + "/.pyenv")
            yield from (str(path / "bin/python") for path in _pyenv_versions(pyenv, version))


def _pyenv_versions(pyenv: Path, version: str) -> list[Path]:
    """Newest first; 3.1 stands for 3.1.4 but not for 3.13."""
    found = [path for path in pyenv.glob(f"versions/{version}*") if re.match(r"[.-]|$", path.name[len(version) :])]
    return sorted(found, key=lambda path: [int(number) for number in re.findall(r"\d+", path.name)], reverse=True)


def _ask_interpreter(candidate: str, environ: Mapping[str, str], check: Check) -> tuple[list[int], str] | None:
    argv = [candidate, "-E", "-s", "-c", _VERSION_PROBE]
    try:
        version, path = json.loads(ask(argv, installer_environ(environ), check) or "")
    except ValueError:
        return None
    return version, path


def find_uv(environ: Mapping[str, str], check: Check) -> str | None:
    """The path of uv, if one is on PATH and starts."""
    uv = shutil.which("uv", path=environ.get("PATH", os.defpath))
    return uv if uv and ask([uv, "--version"], installer_environ(environ), check) else None


def installer_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that an installer needs to reach its index, and no others: package set-up runs foreign code."""

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


def bound_paths(root: Path, found: Iterable[str], home: str) -> tuple[Path, ...]:
    """The smallest set of directories that contains all paths found, both as named and with symlinks resolved.

    A Python whose prefix is a home directory or /opt would expose all of it to every program. Such a prefix is left
    out; the directories found below it are in the list themselves.
    """
    private = [root.parent] + ([Path(home).resolve()] if home else [])
    candidates = {root, *map(Path, found), *(Path(path).resolve() for path in found)}
    bound: list[Path] = []
    for path in sorted(candidates, key=lambda path: len(path.parts)):
        is_too_wide = len(path.parts) <= 2 or any(each.is_relative_to(path) for each in private)
        if not is_too_wide and not is_below(path, (*SYSTEM_DIRECTORIES, *bound)):
            bound.append(path)
    return tuple(sorted(bound))


def is_below(path: Path, directories: Iterable[Path]) -> bool:
    """Whether `path` is one of the directories or inside one."""
    return any(path.is_relative_to(directory) for directory in directories)
