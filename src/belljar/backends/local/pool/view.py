"""What guests see of the host or of an image, and the isolation layers around them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from belljar.contract.errors import EnvironmentBroken, SandboxFault
from belljar.contract.execution import Execution
from belljar.environments import Environment
from belljar.jail import file_access, policy

_SYSTEM_PYTHON = "/usr/bin/python3"  # what is warm in a pool that shows another system
_USE_WHAT_IS_WARM = ("scipy", "seaborn", "sklearn", "statsmodels", "pylab")  # slow without numpy at hand
_SEARCHED_BYTES = 128 * 1024  # of a program, and of its modules together: imports are at the top


@dataclass(frozen=True, slots=True, kw_only=True)
class Walls:
    """The isolation layers that all guests of a pool have."""

    as_root: bool  # guests have uids of their own on the host; else they have that of this process
    uid_base: int
    landlock_version: int  # 0: the operator gave landlock up
    cgroup: bool
    own_devices: bool  # each jail has device nodes of its own

    def owner_of(self, uid: int) -> int | None:
        """The host's uid of a guest with this `uid` in its user namespace; None if it is that of this process."""
        return self.uid_base + uid if self.as_root else None

    def check_dirs(self, directories: Sequence[int]) -> None:
        """Check that directories which a guest has handed over were mounted for a program.

        Raises:
            SandboxFault: they were not; nothing may be read or written beneath them.
        """
        try:
            file_access.check_writable_dirs(directories, self.uid_base if self.as_root else os.geteuid())
        except file_access.NotOurs as error:
            raise SandboxFault(f"a guest has handed over a directory that is not its own: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestView:
    """The root file system, interpreter and variables of all guests of a pool."""

    python: str  # as the guests' root has it
    bound: Mapping[str, str]  # what the root shows, by its place there
    hidden: Sequence[str] = ()  # directories in it that are empty
    system: str = ""  # a directory with another system, shown instead of this one
    environ: Mapping[str, str]
    bare_imports: Sequence[str] = ()  # what every zygote imports ahead
    warm_imports: Sequence[str]  # and what those of the kinds 'packages' and 'session' import
    certificates: str = ""  # of the authorities that sign for web sites; empty: programs find them themselves


def environment_view(environment: Environment, shown: Mapping[str, str], system: str) -> GuestView:
    """What guests on this machine see: an environment, and the places `shown` beside it.

    `system` is a directory with another system: guests see that one, and its Python is the warm process.

    Raises:
        EnvironmentBroken: the interpreter lies where every guest mounts something of its own.
    """
    bound = dict(shown) if system else {**bound_places(environment), **shown}
    return GuestView(
        python=_SYSTEM_PYTHON if system else f"{policy.ENVIRONMENT_DIR}/bin/python",
        bound=bound,
        hidden=[] if system else hidden_places(bound, environment),
        system=system,
        environ=guest_environ(),
        warm_imports=environment.warm_imports,
        certificates=next((path for path in policy.CERTIFICATES if Path(system + path).is_file()), ""),
    )


def import_pattern(names: set[str]) -> re.Pattern[str]:
    """Finds the import of any of these, or of what is slow without them, in a program's text."""
    words = "|".join(sorted(re.escape(name) for name in {*names, *_USE_WHAT_IS_WARM}))
    statement = rf"^[ \t]*(?:import|from)[ \t][^\n#]*\b(?:{words})\b"
    call = rf"(?:import_module|__import__)\([ \t]*['\"](?:{words})\b"
    return re.compile(f"{statement}|{call}", re.MULTILINE)


def imports_any(pattern: re.Pattern[str], execution: Execution) -> bool:
    """Whether a program, or one of its own modules, matches an `import_pattern`."""
    if pattern.search(execution.code, 0, _SEARCHED_BYTES):
        return True
    left = _SEARCHED_BYTES
    for file in execution.files:
        if file.path.endswith(".py") and left > 0:
            module = file.content[:left]
            left -= len(module)
            if pattern.search(module.decode("utf-8", "replace")):
                return True
    return False


def bound_places(environment: Environment) -> dict[str, str]:
    """Where in the jail the environment and its interpreter are seen, and what of the host is there.

    Raises:
        EnvironmentBroken: the interpreter lies where every guest mounts something of its own.
    """
    bound = {policy.ENVIRONMENT_DIR: str(environment.root)}
    for path in map(str, environment.bound_paths):
        if path == str(environment.root):
            continue
        if f"{path}/".startswith(("/work/", "/tmp/", "/dev/", "/proc/", "/env/", "/etc/")):
            raise EnvironmentBroken(
                f"environment {environment.name!r} is built from an interpreter in {path}, which programs cannot see; "
                "build it from one that is installed elsewhere: belljar env create --python PATH --replace"
            )
        bound[path] = path
    return bound


def hidden_places(bound: Mapping[str, str], environment: Environment) -> list[str]:
    """Where the environment's base interpreter keeps packages of its own: the host's, not the programs'."""
    major, minor = environment.version.split(".")[:2]
    lib = f"lib/python{major}.{minor}"
    kept = [f"{place}/{lib}/{name}" for place in bound for name in ("site-packages", "dist-packages")]
    kept += [f"/usr/{lib}/dist-packages", "/usr/lib/python3/dist-packages", f"/usr/local/{lib}/dist-packages"]
    return [place for place in kept if not place.startswith(policy.ENVIRONMENT_DIR) and Path(place).is_dir()]


def guest_environ() -> dict[str, str]:
    """The environment variables every program starts with."""
    return {
        "PATH": f"{policy.ENVIRONMENT_DIR}/bin:/usr/local/bin:/usr/bin:/bin",
        "HOME": policy.WORK_DIR,
        "USER": "sandbox",
        "LANG": "C.UTF-8",
        "VIRTUAL_ENV": policy.ENVIRONMENT_DIR,
    }
