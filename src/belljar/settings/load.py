"""Loads settings from a TOML file, the environment, flags, and the variables of other code servers."""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from belljar.contract.errors import InvalidSettings
from belljar.contract.execution import MIB
from belljar.settings.model import EnvironmentSettings, ModelSettings, Settings, ToolServerSettings
from belljar.settings.validate import check

#: Settings that hold several named tables.
_NAMED: Mapping[str, type[Any]] = {"servers": ToolServerSettings, "models": ModelSettings}

#: How their variables would begin. They cannot be set by variables: `_` would be ambiguous, and so would capitals.
_NAMED_VARIABLES = tuple(
    f"BELLJAR_{each}_" for each in ("ENVIRONMENTS", "TOOLS_SERVERS", "LLM_MODELS", "LANGUAGES_ROOTS")
)

#: Variables that are not settings: of clients, of compose.yaml, of our tests, and those that Kubernetes
#: gives to every pod next to a service named belljar.
_OTHER_VARIABLES = re.compile(
    r"BELLJAR_((URL|API_KEY|IMAGE|MEMORY|TEST_\w+|SERVICE_(HOST|PORT)\w*|PORT_\d+_\w+)=|PORT=\w+://)"
)

#: Settings that had another name in version 0.1.
_RENAMED: Mapping[str, str] = {"pool.cell_seconds": "pool.jail_seconds"}

#: How error messages name the expected type.
_WORDS: Mapping[type, str] = {tuple: "a list", bool: "true or false", float: "a number", int: "a whole number"}

#: Variables of other code servers, and the settings they map to. Belljar's own variables win over them.
_FAMILIAR: Mapping[str, tuple[str, ...]] = {
    "HOST": ("server.host",),
    "PORT": ("server.port",),
    "DEBUG": ("server.debug",),
    "API_KEY": ("server.api_key",),
    "ALLOWED_HOSTS": ("server.allowed_hosts",),
    "MAX_KERNELS": ("sessions.max_sessions",),
    "KERNEL_TIMEOUT": ("sessions.idle_seconds",),
    "MAX_EXECUTION_TIME": ("default_limits.wall_seconds", "default_limits.cpu_seconds"),  # a request may ask for more
    "MAX_MEMORY_MB": ("default_limits.memory_bytes", "ceiling_limits.memory_bytes"),  # requests to that server cannot
    "CONTAINER_IMAGE": ("container.image",),
    "CONTAINER_LANGUAGE": ("container.language",),
    "BACKEND": ("container.engine",),
}


def load(
    path: Path | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
    *,
    takes_familiar_names: bool = False,
) -> Settings:
    """Read the settings; `flags` maps dotted names to values given on the command line.

    `takes_familiar_names` also reads HOST, PORT, DEBUG, … Only a server should: elsewhere these variables are often
    set for other programs.

    Raises:
        InvalidSettings: a name is unknown, or a value has the wrong type or makes no sense.
    """
    provenance: dict[str, str] = {}
    settings = Settings()
    environ = os.environ if environ is None else environ
    familiar = familiar_names(environ) if takes_familiar_names else ()
    if ("CONTAINER_IMAGE" in familiar) != ("CONTAINER_LANGUAGE" in familiar):
        raise InvalidSettings("CONTAINER_IMAGE and CONTAINER_LANGUAGE must be set together")

    def put(source: str, values: Mapping[str, Any]) -> None:
        nonlocal settings
        for name, value in values.items():
            settings = _replace(settings, name, value)
            provenance[name] = source

    put(f"file {path}", _read_file(path) if path else {})
    for name in familiar:
        put(f"environment, as {name}", _from_familiar(name, environ[name], settings))
    put("environment", _from_environ(environ))
    put("flag", flags or {})
    check(settings)
    return dataclasses.replace(settings, provenance=provenance)


def _read_file(path: Path) -> dict[str, Any]:
    try:
        tree = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise InvalidSettings(f"cannot read the settings file {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidSettings(f"the settings file {path} is not valid TOML: {error}") from error
    flat: dict[str, Any] = {}

    def walk(prefix: str, node: Mapping[str, Any]) -> None:
        for key, value in node.items():
            if isinstance(value, dict):
                walk(f"{prefix}{key}.", value)
            else:
                flat[f"{prefix}{key}"] = value

    walk("", tree)
    return flat


def _from_environ(environ: Mapping[str, str]) -> dict[str, Any]:
    by_variable = {_variable(name): name for name in names()}
    for variable, value in environ.items():
        is_ours = variable.startswith("BELLJAR_") and not _OTHER_VARIABLES.match(f"{variable}={value}")
        if is_ours and variable not in by_variable:
            raise InvalidSettings(_no_setting(variable, list(by_variable)), setting=variable)
    return {by_variable[key]: value for key, value in environ.items() if key in by_variable}


def _variable(name: str) -> str:
    return "BELLJAR_" + name.upper().replace(".", "_")


def _no_setting(variable: str, known: list[str]) -> str:
    """The error message for a variable that looks like a setting but is not one."""
    if variable.startswith(_NAMED_VARIABLES):
        return f"the environment cannot hold {variable}: put it into a settings file (--config FILE)"
    for old, new in _RENAMED.items():
        if variable == _variable(old):
            return f"{variable} is now called {_variable(new)}; rename it in the environment"
    (nearest,) = difflib.get_close_matches(variable, known, n=1, cutoff=0.0)
    return f"unknown setting {variable} in the environment; did you mean {nearest}?"


def familiar_names(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The variables of other code servers that are set."""
    return tuple(name for name in _FAMILIAR if environ.get(name))


def _from_familiar(name: str, value: str, so_far: Settings) -> dict[str, Any]:
    if name == "MAX_EXECUTION_TIME":
        return dict.fromkeys(_FAMILIAR[name], value) | _raised_ceilings(value, so_far)
    if name == "BACKEND":
        return _chosen_backend(value)
    if name == "ALLOWED_HOSTS" and value.startswith("["):  # a JSON list, as that server expects
        value = value.translate(str.maketrans("", "", "[]\"'"))
    if name == "MAX_MEMORY_MB":
        try:
            value = str(int(value) * MIB)
        except ValueError:
            raise InvalidSettings(f"MAX_MEMORY_MB must be a whole number, not {value!r}") from None
    return dict.fromkeys(_FAMILIAR[name], value)


def _raised_ceilings(value: str, so_far: Settings) -> dict[str, Any]:
    """The ceilings that are below the new default time."""
    try:
        seconds = float(value)
    except ValueError:
        raise InvalidSettings(f"MAX_EXECUTION_TIME must be a number of seconds, not {value!r}") from None
    ceiling = so_far.ceiling_limits
    names = ("wall_seconds", "cpu_seconds")
    return {f"ceiling_limits.{name}": value for name in names if getattr(ceiling, name) < seconds}


def _chosen_backend(value: str) -> dict[str, Any]:
    """BACKEND names a container engine."""
    if value not in ("docker", "podman"):
        raise InvalidSettings(f"BACKEND is {value!r} but must be docker or podman; for Kubernetes see docs/deploy.md")
    return {"backend": "container", "container.engine": value}


def names() -> list[str]:
    """Dotted names of every setting that is not part of a named environment."""
    found = []
    for outer in dataclasses.fields(Settings):
        if outer.name in ("environments", "provenance"):
            continue
        default = getattr(Settings(), outer.name)
        if dataclasses.is_dataclass(default):
            inner_names = (inner.name for inner in dataclasses.fields(default) if inner.name not in _NAMED)
            found += [f"{outer.name}.{inner}" for inner in inner_names if (outer.name, inner) != ("languages", "roots")]
        else:
            found.append(outer.name)
    return found


def _replace(settings: Settings, name: str, value: Any) -> Settings:
    parts = name.split(".")
    if parts[0] == "environments" and len(parts) >= 3:
        environments = dict(settings.environments)
        environment, attribute = ".".join(parts[1:-1]), parts[-1]  # its name may have dots
        before = environments.get(environment, EnvironmentSettings())
        environments[environment] = dataclasses.replace(before, **{attribute: _convert(name, before, attribute, value)})
        return dataclasses.replace(settings, environments=environments)
    if len(parts) >= 4 and parts[1] in _NAMED:
        return _replace_named(settings, name, parts, value)
    if parts[:2] == ["languages", "roots"] and len(parts) == 3:
        roots = {**settings.languages.roots, parts[2]: str(Path(str(value)).expanduser().absolute())}
        return dataclasses.replace(settings, languages=dataclasses.replace(settings.languages, roots=roots))
    if name not in names():
        raise _unknown(name)
    if len(parts) == 1:
        return dataclasses.replace(settings, **{name: _convert(name, settings, name, value)})
    section = getattr(settings, parts[0])
    section = dataclasses.replace(section, **{parts[1]: _convert(name, section, parts[1], value)})
    return dataclasses.replace(settings, **{parts[0]: section})


def _unknown(name: str) -> InvalidSettings:
    if name in _RENAMED:
        return InvalidSettings(f"setting {name!r} is now called {_RENAMED[name]!r}; rename it", setting=name)
    near = difflib.get_close_matches(name, names(), n=1)
    advice = f"did you mean {near[0]!r}? Choose from" if near else "choose from"
    return InvalidSettings(f"unknown setting {name!r}; {advice}: {', '.join(names())}", setting=name)


def _replace_named(settings: Settings, name: str, parts: list[str], value: Any) -> Settings:
    """Replace a value in a named table, such as `tools.servers.NAME.url`."""
    section: Any = getattr(settings, parts[0], None)
    if not hasattr(section, parts[1]):
        raise InvalidSettings(f"unknown setting {name!r}", setting=name)
    every = dict(getattr(section, parts[1]))
    own, attribute = ".".join(parts[2:-1]), parts[-1]
    before = every.get(own, _NAMED[parts[1]]())
    every[own] = dataclasses.replace(before, **{attribute: _convert(name, before, attribute, value)})
    changed: Any = dataclasses.replace(section, **{parts[1]: every})
    return dataclasses.replace(settings, **{parts[0]: changed})


def _convert(name: str, owner: Any, attribute: str, value: Any) -> Any:
    """Convert `value` to the type of this setting's default."""
    if attribute not in {each.name for each in dataclasses.fields(owner)}:
        raise InvalidSettings(f"unknown setting {name!r}", setting=name)
    current = getattr(owner, attribute)
    try:
        if isinstance(current, tuple):
            parts = value.split(",") if isinstance(value, str) else value
            return tuple(str(part).strip() for part in parts if str(part).strip())
        if isinstance(current, Path):
            return Path(value).expanduser().absolute()
        if isinstance(current, bool):
            return _read_bool(value)
        if isinstance(current, float):
            return float(value)
        if isinstance(current, int):
            return int(value)
        return str(value)
    except (TypeError, ValueError):
        wanted = _WORDS.get(type(current), "a path")
        raise InvalidSettings(f"setting {name!r} must be {wanted}, not {value!r}", setting=name) from None


def _read_bool(value: Any) -> bool:
    word = str(value).strip().lower()
    if word in ("1", "true", "yes", "on"):
        return True
    if word in ("0", "false", "no", "off", ""):
        return False
    raise ValueError
