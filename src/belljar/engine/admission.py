"""What a caller asks, checked and made into an Execution.

Every front end comes through `admit`, so that one request means the same everywhere and every message names the
field and says what to do. Nothing is checked that is harmless inside the jail: `LD_PRELOAD` or a file called
`numpy.py` concern nobody but the program that asked for them.

Two rules that are not obvious:

- A caller who asks for more wall time and does not mention CPU time gets as much CPU time: who writes `timeout=60`
  means a minute of work, not a minute of waiting.
- Text is checked for lone surrogates here. They cannot be encoded, so further in they would blow up wherever
  somebody first writes them to a socket.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from belljar.contract.artifacts import GLOB_CHARACTERS_MAX, GLOB_COUNT_MAX, GLOBS_CHARACTERS_MAX
from belljar.contract.errors import (
    InvalidExecution,
    InvalidSettings,
    LimitAboveCeiling,
    NotOffered,
    TooLarge,
    UnknownEnvironment,
    UnknownLanguage,
)
from belljar.contract.execution import MIB, Coverage, Execution, Limits
from belljar.contract.files import File, check_relative_path
from belljar.contract.restriction import Restriction
from belljar.contract.sessions import SessionOrder
from belljar.engine.restriction import read_restriction
from belljar.settings import Settings, check_environment_name

_PYTHON_NAMES = ("python", "py", "python3")
_SESSION_LANGUAGES = {
    **dict.fromkeys(("python", "py", "python3"), "python"),
    **dict.fromkeys(("javascript", "js", "node", "nodejs"), "javascript"),
    **dict.fromkeys(("sh", "bash", "shell"), "sh"),
}
_SESSION_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._~-]{0,127}")
_TOOL_NAME_CHARACTERS_MAX = 200
_IMAGE = re.compile(r"image:[A-Za-z0-9][A-Za-z0-9._:@/-]{0,254}")  # which of them is decided where they are kept
_RESERVED_ENV_PREFIX = "BELLJAR_"  # how we may come to speak to our own code beside the program


class _Unit(NamedTuple):
    field: str  # of Limits
    factor: int
    word: str


#: The limits by the names callers use.
_UNITS: Mapping[str, _Unit] = {
    "wall_seconds": _Unit("wall_seconds", 1, "seconds"),
    "cpu_seconds": _Unit("cpu_seconds", 1, "seconds"),
    "memory_mb": _Unit("memory_bytes", MIB, "MiB"),
    "output_kb": _Unit("output_bytes", 1024, "KiB"),
    "disk_mb": _Unit("disk_bytes", MIB, "MiB"),
    "processes": _Unit("processes", 1, "processes and threads"),
}


def admit(
    settings: Settings,
    code: str,
    *,
    language: str = "python",
    stdin: str | bytes = b"",
    args: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    files: Mapping[str, str | bytes] | Iterable[File] | None = None,
    artifacts: Sequence[str] = (),
    limits: Limits | Mapping[str, float] | None = None,
    timeout: float | None = None,
    memory_mb: float | None = None,
    environment: str = "default",
    network: bool = False,
    tools: Sequence[str] = (),
    coverage: bool | Coverage | Mapping[str, bool] | None = None,
    restrict: Restriction | Mapping[str, Any] | None = None,
    caller: str = "",
) -> Execution:
    """Return the execution that is asked for, or say what is wrong with it.

    `limits` is a whole Limits, or a mapping with the names of the native API over the server's defaults.
    `timeout` is short for `wall_seconds` and `memory_mb` for itself. `coverage` is whether to measure it, or how:
    `{"branch": True}`. `restrict` is a whole Restriction, or a mapping with `imports` and `max_print_length` over the
    server's defaults.

    Raises:
        CallerError: a field cannot be accepted; the message names it.
    """
    _check_code(settings, code)
    language = _resolve_language(settings, language)
    _check_environment(environment)
    return Execution(
        code=code,
        language=language,
        stdin=_read_stdin(settings, stdin) if stdin else b"",
        args=_read_args(settings, args) if args else (),
        env=_read_env(settings, env, args or ()) if env else {},
        files=_read_files(settings, files, _source_of(language, code)) if files else (),
        artifacts=_read_globs(artifacts) if artifacts else (),
        limits=_read_limits(settings, limits, timeout, memory_mb),
        environment=environment,
        network=_read_network(settings, network) if network else False,
        tools=_read_tools(tools, language) if tools else (),
        coverage=_read_coverage(language, coverage) if coverage else None,
        restrict=None if restrict is None else read_restriction(settings, restrict, language),
        caller=caller,
    )


def admit_session(
    settings: Settings,
    *,
    id: str = "",
    language: str = "python",
    environment: str = "default",
    limits: Limits | Mapping[str, float] | None = None,
    timeout: float | None = None,
    memory_mb: float | None = None,
    idle_seconds: float | None = None,
    env: Mapping[str, str] | None = None,
    network: bool = False,
    tools: Sequence[str] = (),
    files: Mapping[str, str | bytes] | Iterable[File] | None = None,
    caller: str = "",
) -> SessionOrder:
    """Return the session that is asked for, or say what is wrong with it.

    `limits` holds for the session's whole life but for its times, which each cell starts anew with.

    Raises:
        CallerError: a field cannot be accepted; the message names it.
    """
    _check_session_id(id)
    _check_environment(environment)
    return SessionOrder(
        id=id,
        language=_resolve_session_language(language),
        environment=environment,
        limits=_read_limits(settings, limits, timeout, memory_mb),
        idle_seconds=_read_idle_seconds(settings, idle_seconds),
        env=_read_env(settings, env, ()) if env else {},
        network=_read_network(settings, network) if network else False,
        tools=tuple(tools),
        files=_read_files(settings, files, "") if files else (),
        caller=caller,
    )


def admit_cell(
    settings: Settings,
    session: Limits,
    code: str,
    *,
    artifacts: Sequence[str] = (),
    limits: Mapping[str, float] | None = None,
    timeout: float | None = None,
    caller: str = "",
) -> Execution:
    """Return a cell for a session that has the limits `session`, or say what is wrong with it.

    A cell has the session's limits but for its own times and output, which it may ask for.

    Raises:
        CallerError: a field cannot be accepted; the message names it.
    """
    for name in limits or ():
        if name in ("memory_mb", "disk_mb", "processes"):
            raise InvalidExecution(f"limits.{name} holds for the whole session; set it when you open one", field=name)
    within = dataclasses.replace(settings, default_limits=session)
    return admit(within, code, artifacts=artifacts, limits=limits, timeout=timeout, caller=caller)


def _check_session_id(id: object) -> None:
    if id != "" and not (isinstance(id, str) and _SESSION_ID.fullmatch(id)):
        raise InvalidExecution(
            f"id {_show(id)} must be 1 to 128 of A-Z a-z 0-9 . _ ~ - and start with a letter or digit; or leave it out",
            field="id",
        )


def _resolve_session_language(language: object) -> str:
    known = _SESSION_LANGUAGES.get(language.lower()) if isinstance(language, str) else None
    if known is None:
        offered = ", ".join(dict.fromkeys(_SESSION_LANGUAGES.values()))
        raise NotOffered(f"language {_show(language)} has no sessions; choose one of: {offered}", field="language")
    return known


def _read_idle_seconds(settings: Settings, idle_seconds: float | None) -> float:
    if idle_seconds is None:
        return settings.sessions.idle_seconds
    if isinstance(idle_seconds, bool) or not isinstance(idle_seconds, (int, float)):
        raise _wrong_type("idle_seconds", "a number", idle_seconds)
    most = settings.sessions.idle_seconds_max
    if not 0 < idle_seconds <= most:
        raise InvalidExecution(
            f"idle_seconds is {_show(idle_seconds)} but must be above 0 and at most {most:g}", field="idle_seconds"
        )
    return float(idle_seconds)


def _read_network(settings: Settings, network: object) -> bool:
    if network is not True:
        raise _wrong_type("network", "true or false", network)
    if not settings.network.offered:
        raise NotOffered(
            "network is not offered here; leave it out or send false (the operator offers it: network.offered)",
            field="network",
        )
    return True


def _read_tools(tools: Sequence[str], language: str) -> tuple[str, ...]:
    """Only their form; which ones there are is known to the engine's ToolHost."""
    if language != "python":
        raise InvalidExecution("tools can be called from Python programs only; leave them out", field="tools")
    for name in _sequence("tools", tools):
        if not isinstance(name, str) or not 0 < len(name) <= _TOOL_NAME_CHARACTERS_MAX:
            raise _wrong_type("each of tools", "the name of a tool", name)
    return tuple(tools)


def _check_code(settings: Settings, code: str) -> None:
    size = _measure("code", code)
    if size > settings.request.code_bytes:
        raise _too_large("code", size, settings.request.code_bytes, "put data into files instead")
    if not code or code.isspace():
        raise InvalidExecution("code is blank; send a program", field="code")
    if "\0" in code:
        raise InvalidExecution(
            f"code has a NUL character at position {code.index(chr(0))}, which no Python source may; remove it or "
            "write it as an escape (\\0)",
            field="code",
        )


def _resolve_language(settings: Settings, language: object) -> str:
    """Its own name. Nothing is read for Python; the rest must be on this machine."""
    if language in _PYTHON_NAMES:
        return "python"
    from belljar import languages  # most callers never name another

    known = languages.find_name(language) if isinstance(language, str) else None
    if known is None:
        offered = ", ".join(languages.load_all())
        raise UnknownLanguage(
            f"language {_show(language)} is not known; choose one of: {offered} (GET /v1/languages and `belljar "
            "languages list` tell their other names)",
            languages=list(languages.load_all()),
        )
    if settings.backend == "container":
        return known  # an image has toolchains of its own
    machine = languages.machine_of(settings)
    if not machine.is_available(known):
        raise machine.explain_missing(known)
    return known


def _source_of(language: str, code: str) -> str:
    if language == "python":
        return "main.py"
    from belljar import languages

    return languages.load_one(language).plan(code).source


def _check_environment(environment: str) -> None:
    """Only the name's form; which ones exist is known where they are kept."""
    if environment == "default":
        return
    try:
        if _IMAGE.fullmatch(environment):
            return
        check_environment_name(environment)
    except (InvalidSettings, TypeError):
        raise UnknownEnvironment(
            f"environment {_show(environment)} cannot be a name; use one that the server lists",
            environment=_show(environment),
        ) from None


def _read_coverage(language: str, coverage: object) -> Coverage:
    if language != "python":
        raise InvalidExecution(
            f"coverage is measured for python only, not for {language}; leave it out", field="coverage"
        )
    if isinstance(coverage, Coverage):
        return coverage
    if coverage is True:
        return Coverage()
    if not isinstance(coverage, Mapping):
        raise _wrong_type("coverage", "true, false or a mapping such as {'branch': true}", coverage)
    unknown = [name for name in coverage if name != "branch"]
    if unknown:
        raise InvalidExecution(f"coverage has no {_show(unknown[0])}; known is: branch", field="coverage")
    if not isinstance(coverage["branch"], bool):
        raise _wrong_type("coverage.branch", "true or false", coverage["branch"])
    return Coverage(branch=coverage["branch"])


def _read_stdin(settings: Settings, stdin: object) -> bytes:
    if isinstance(stdin, str):
        _measure("stdin", stdin)
        stdin = stdin.encode()
    elif not isinstance(stdin, (bytes, bytearray, memoryview)):
        raise _wrong_type("stdin", "a string or bytes", stdin)
    content = bytes(stdin)
    if len(content) > settings.request.stdin_bytes:
        raise _too_large("stdin", len(content), settings.request.stdin_bytes, "send it as a file and open that")
    return content


def _read_args(settings: Settings, args: Sequence[str]) -> tuple[str, ...]:
    size = sum(_measure_word(f"args[{at}]", arg) for at, arg in enumerate(_sequence("args", args)))
    _check_env_size(settings, size)
    return tuple(args)


def _read_env(settings: Settings, env: Mapping[str, str], args: Sequence[str]) -> dict[str, str]:
    if not isinstance(env, Mapping):
        raise _wrong_type("env", "a mapping of names to values", env)
    size = sum(len(arg.encode()) + 1 for arg in args)
    for name, value in env.items():
        size += _measure_word("a name in env", name)
        if not name or "=" in name:
            raise InvalidExecution(f"env name {_show(name)} must not be empty or contain '='; rename it", field="env")
        if name.startswith(_RESERVED_ENV_PREFIX):
            raise InvalidExecution(
                f"env name {_show(name)} is reserved: names that start with {_RESERVED_ENV_PREFIX} are ours; rename it",
                field="env",
            )
        size += _measure_word(f"env[{_show(name)}]", value)
    _check_env_size(settings, size)
    return dict(env)


def _check_env_size(settings: Settings, size: int) -> None:
    if size > settings.request.env_bytes:
        raise _too_large("args and env together", size, settings.request.env_bytes, "use stdin or files for data")


def _read_files(settings: Settings, files: object, source: str) -> tuple[File, ...]:
    given = _as_files(files)
    if len(given) > settings.request.file_count:
        raise _too_large("files", len(given), settings.request.file_count, "pack them into an archive", unit="files")
    size = sum(len(file.content) for file in given)
    if size > settings.request.files_bytes:
        raise _too_large("files together", size, settings.request.files_bytes, "send less")
    _check_tree([file.path for file in given], source)
    return given


def _as_files(files: object) -> tuple[File, ...]:
    if isinstance(files, Mapping):
        return tuple(_as_file(path, content) for path, content in files.items())
    if isinstance(files, (str, bytes)) or not isinstance(files, Iterable):
        raise _wrong_type("files", "a mapping of paths to contents, or a sequence of File", files)
    given = list(files)
    for file in given:
        if not isinstance(file, File):
            raise _wrong_type("each of files", "a File", file)
    return tuple(_as_file(file.path, file.content) for file in given)


def _as_file(path: object, content: object) -> File:
    if not isinstance(path, str):
        raise _wrong_type("a path in files", "a string", path)
    return File(path=check_relative_path(path), content=_read_content(path, content))


def _read_content(path: str, content: object) -> bytes:
    if isinstance(content, str):
        _measure(f"files[{_show(path)}]", content)
        return content.encode()
    if not isinstance(content, (bytes, bytearray, memoryview)):
        raise _wrong_type(f"files[{_show(path)}]", "a string or bytes", content)
    return bytes(content)


def _check_tree(paths: list[str], source: str) -> None:
    """Every path must be able to exist beside all others: none twice, none a directory of another."""
    taken = {source}
    for path in paths:
        if path == source:
            raise InvalidExecution(
                f"files[{_show(path)}] is reserved for the program itself; choose another name", field="files"
            )
        if path in taken:
            raise InvalidExecution(f"files names {_show(path)} twice; send it once", field="files")
        taken.add(path)
    for path in paths:
        cut = path.find("/")
        while cut >= 0:
            if path[:cut] in taken:
                raise InvalidExecution(
                    f"files needs {_show(path[:cut])} as a file and as the directory of {_show(path)}; rename one",
                    field="files",
                )
            cut = path.find("/", cut + 1)


def _read_globs(artifacts: Sequence[str]) -> tuple[str, ...]:
    globs = tuple(_sequence("artifacts", artifacts))
    if len(globs) > GLOB_COUNT_MAX:
        raise _too_large("artifacts", len(globs), GLOB_COUNT_MAX, "use wider patterns", unit="patterns")
    for at, glob in enumerate(globs):
        _check_glob(f"artifacts[{at}]", glob)
    total = sum(map(len, globs))
    if total > GLOBS_CHARACTERS_MAX:
        raise _too_large("artifacts together", total, GLOBS_CHARACTERS_MAX, "use wider patterns", unit="characters")
    return globs


def _check_glob(field: str, glob: str) -> None:
    _measure_word(field, glob)
    if len(glob) > GLOB_CHARACTERS_MAX:
        raise _too_large(field, len(glob), GLOB_CHARACTERS_MAX, "use a shorter pattern", unit="characters")
    parts = glob.split("/")
    if glob.startswith("/") or ".." in parts:
        raise InvalidExecution(
            f"{field} {_show(glob)} must be relative to the work directory, without '..'", field="artifacts"
        )
    if not any(part not in ("", ".") for part in parts):
        raise InvalidExecution(f"{field} names no file; write a pattern such as '*.png' or 'out/**'", field="artifacts")


def _read_limits(
    settings: Settings, limits: Limits | Mapping[str, float] | None, timeout: float | None, memory_mb: float | None
) -> Limits:
    is_whole = isinstance(limits, Limits)
    base = _check_whole(settings, limits) if isinstance(limits, Limits) else settings.default_limits
    asked = [] if limits is None or is_whole else _name_limits(limits)
    if timeout is not None:
        asked.append(("timeout", _UNITS["wall_seconds"], timeout))
    if memory_mb is not None:
        asked.append(("memory_mb", _UNITS["memory_mb"], memory_mb))
    if not asked:
        return base
    values: dict[str, Any] = {}
    for label, unit, value in asked:
        amount = _read_limit(settings, label, unit, value)
        if values.setdefault(unit.field, amount) != amount:
            raise InvalidExecution(f"{label} and limits disagree; give one of them", field=label)
    if "wall_seconds" in values and not is_whole:
        enough = max(base.cpu_seconds, values["wall_seconds"])
        values.setdefault("cpu_seconds", min(enough, settings.ceiling_limits.cpu_seconds))
    return dataclasses.replace(base, **values)


def _name_limits(limits: Any) -> list[tuple[str, _Unit, Any]]:
    if not isinstance(limits, Mapping):
        raise _wrong_type("limits", "a mapping of limits to numbers", limits)
    unknown = [name for name in limits if name not in _UNITS]
    if unknown:
        raise InvalidExecution(f"limits has no {_show(unknown[0])}; known are: {', '.join(_UNITS)}", field="limits")
    return [(f"limits.{name}", _UNITS[name], value) for name, value in limits.items()]


def _check_whole(settings: Settings, limits: Limits) -> Limits:
    for each in dataclasses.fields(Limits):
        unit = _Unit(each.name, 1, each.name.rpartition("_")[2])
        _read_limit(settings, f"limits.{each.name}", unit, getattr(limits, each.name))
    return limits


def _read_limit(settings: Settings, label: str, unit: _Unit, value: Any) -> float | int:
    """The value in the unit of Limits, once it is a positive number that the operator gives."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _wrong_type(label, "a number", value)
    if not (value > 0 and (isinstance(value, int) or math.isfinite(value))):
        raise InvalidExecution(f"{label} is {value} but must be a finite number above 0", field=label)
    ceiling = getattr(settings.ceiling_limits, unit.field)
    if value * unit.factor > ceiling:
        most = _plain(ceiling / unit.factor)
        raise LimitAboveCeiling(
            f"{label} is {_show(value)}, but this server gives at most {most} {unit.word}; ask for {most} or less",
            limit=label.removeprefix("limits."),
            ceiling=most,
            unit=unit.word,
        )
    if unit.word == "seconds":
        return float(value)
    amount = int(value * unit.factor)
    if unit.factor == 1 and amount != value:
        raise InvalidExecution(f"{label} is {value} but must be a whole number", field=label)
    if amount < 1:
        raise InvalidExecution(f"{label} is {value}, which is less than a byte; ask for more", field=label)
    return amount


def _measure(field: str, text: object) -> int:
    """How many bytes `text` has in UTF-8; refuse what is not text."""
    if not isinstance(text, str):
        raise _wrong_type(field, "a string", text)
    if text.isascii():
        return len(text)
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidExecution(
            f"{field} has a lone surrogate (U+{ord(text[error.start]):04X}) at position {error.start}, which is not "
            "a character; send valid Unicode, and bytes as base64 files",
            field=field,
        ) from None


def _measure_word(field: str, text: str) -> int:
    """As `_measure`, for text that the kernel ends with a NUL, which it then counts as well."""
    size = _measure(field, text)
    if "\0" in text:
        raise InvalidExecution(f"{field} has a NUL character, which cannot be passed on; remove it", field=field)
    return size + 1


def _sequence(field: str, given: object) -> Sequence[Any]:
    """Refuse a bare string: it would be taken apart into its letters."""
    if isinstance(given, (str, bytes)) or not isinstance(given, Sequence):
        raise _wrong_type(field, "a list of strings", given)
    return given


def _wrong_type(field: str, wanted: str, given: object) -> InvalidExecution:
    return InvalidExecution(f"{field} must be {wanted}, not {type(given).__name__}", field=field)


def _too_large(field: str, size: int, size_max: int, advice: str, unit: str = "bytes") -> TooLarge:
    return TooLarge(
        f"{field}: {size:,} {unit} are more than the {size_max:,} taken here; {advice}",
        field=field,
        size=size,
        max=size_max,
    )


def _show(given: object) -> str:
    """`given` as it may stand in a message: escaped, and short however long it is."""
    if isinstance(given, str) and len(given) > 80:
        return repr(given[:80] + "…")
    if isinstance(given, int) and abs(given) > 10**20:
        return "a number of more than 20 digits"
    return repr(given)[:100]


def _plain(number: float) -> float | int:
    return int(number) if number == int(number) else number
