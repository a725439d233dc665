"""What a program sees of its environment, and which warm process it should come from."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from belljar.contract.errors import EnvironmentBroken
from belljar.contract.execution import Execution
from belljar.environments import Environment
from belljar.jail import policy

_USE_WHAT_IS_WARM = ("scipy", "seaborn", "sklearn", "statsmodels", "pylab")  # slow without numpy at hand
_SEARCHED_BYTES = 128 * 1024  # of a program, and of its modules together: imports are at the top


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
