"""Checks what callers request and makes an Execution, a session's order or a cell of it.

Every front end comes through `admit`, so that one request means the same everywhere and every message names the
field and says what to do. Nothing is checked that is harmless inside the jail: `LD_PRELOAD` or a file called
`numpy.py` concern only the program of the request.

Two rules that are not obvious:

- A request for more wall time that does not mention CPU time gets as much CPU time: `timeout=60` means a minute of
  work, not a minute of waiting.
- Text is checked for lone surrogates here. They cannot be encoded, and would fail later, when text is written to a
  socket.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from belljar.contract.errors import (
    InvalidExecution,
    InvalidSettings,
    NotOffered,
    UnknownEnvironment,
    UnknownLanguage,
)
from belljar.contract.execution import Coverage, Execution, Limits
from belljar.contract.request import CellFields, CommonFields, ExecutionFields, NestedObject, SessionFields
from belljar.contract.sessions import SessionOrder
from belljar.contract.tools import ALL_TOOLS
from belljar.engine.admission.files import read_files, read_globs
from belljar.engine.admission.limits import read_limits
from belljar.engine.admission.messages import measure, measure_word, sequence, show, too_large, wrong_type
from belljar.engine.admission.restriction import read_restriction
from belljar.settings import Settings, check_environment_name

_PYTHON_NAMES = ("python", "py", "python3")
_SESSION_LANGUAGES = {
    **dict.fromkeys(_PYTHON_NAMES, "python"),
    **dict.fromkeys(("javascript", "js", "node", "nodejs"), "javascript"),
    **dict.fromkeys(("sh", "bash", "shell"), "sh"),
}
_SESSION_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._~-]{0,127}")
_TOOL_NAME_CHARACTERS_MAX = 200
_IMAGE = re.compile(r"image:[A-Za-z0-9][A-Za-z0-9._:@/-]{0,254}")  # the container back end knows which images exist
_RESERVED_ENV_PREFIX = "BELLJAR_"  # for variables that Belljar may pass to its own code beside the program


def admit(settings: Settings, request: ExecutionFields, caller: str = "") -> Execution:
    """Check a request to run a program. A plain one stays in this file: what is not set is not looked at.

    Raises:
        CallerError: a field cannot be accepted; the message names it.
    """
    code = _check_code(settings, request.code)
    language = request.language
    if language != "python":
        language = _resolve_language(settings, language)
    if request.environment != "default":
        _check_environment(request.environment)
    stdin, args, env, files, artifacts = request.stdin, request.args, request.env, request.files, request.artifacts
    coverage, restrict = request.coverage, request.restrict
    return Execution(
        code=code,
        language=language,
        stdin=_read_stdin(settings, stdin) if stdin else b"",
        args=_read_args(settings, args) if args else (),
        env=_read_env(settings, env, args or ()) if env else {},
        files=read_files(settings, files, _source_of(language, code)) if files else (),
        artifacts=read_globs(artifacts) if artifacts else (),
        limits=_limits_of(settings, request),
        environment=request.environment,
        network=_read_network(settings, request.network) if request.network else False,
        tools=_read_tools(request.tools, language) if request.tools else (),
        coverage=_read_coverage(language, coverage) if coverage else None,
        restrict=None if restrict is None else read_restriction(settings, restrict, language),
        caller=caller,
    )


def admit_session(settings: Settings, request: SessionFields, caller: str = "") -> SessionOrder:
    """Check a request for a session. Its limits hold for its whole life, except for times, which count for each cell.

    Raises:
        CallerError: a field cannot be accepted; the message names it.
    """
    _check_session_id(request.id)
    if request.environment != "default":
        _check_environment(request.environment)
    return SessionOrder(
        id=request.id,
        language=_resolve_session_language(request.language),
        environment=request.environment,
        limits=_limits_of(settings, request),
        idle_seconds=_read_idle_seconds(settings, request.idle_seconds),
        env=_read_env(settings, request.env, ()) if request.env else {},
        network=_read_network(settings, request.network) if request.network else False,
        tools=_read_tools(request.tools) if request.tools else (),
        files=read_files(settings, request.files, "") if request.files else (),
        caller=caller,
    )


def admit_cell(settings: Settings, session: Limits, request: CellFields, caller: str = "") -> Execution:
    """Check a cell for a session that has the limits `session`: those it has too, but for its own times and output.

    Raises:
        CallerError: a field cannot be accepted; the message names it.
    """
    limits = request.limits
    if isinstance(limits, NestedObject):
        limits = limits.given()
    for name in limits or ():
        if name in ("memory_mb", "disk_mb", "processes"):
            raise InvalidExecution(f"limits.{name} holds for the whole session; set it when you open one", field=name)
    has_own = limits is not None or request.timeout is not None
    return Execution(
        code=_check_code(settings, request.code),
        artifacts=read_globs(request.artifacts) if request.artifacts else (),
        limits=read_limits(settings, session, limits, request.timeout) if has_own else session,
        caller=caller,
    )


def _limits_of(settings: Settings, request: CommonFields) -> Limits:
    limits, timeout, memory_mb = request.limits, request.timeout, request.memory_mb
    if limits is None and timeout is None and memory_mb is None:
        return settings.default_limits
    return read_limits(settings, settings.default_limits, limits, timeout, memory_mb)


def _check_session_id(id: object) -> None:
    if id != "" and not (isinstance(id, str) and _SESSION_ID.fullmatch(id)):
        raise InvalidExecution(
            f"id {show(id)} must be 1 to 128 of A-Z a-z 0-9 . _ ~ - and start with a letter or digit; or leave it out",
            field="id",
        )


def _resolve_session_language(language: object) -> str:
    known = _SESSION_LANGUAGES.get(language.lower()) if isinstance(language, str) else None
    if known is None:
        offered = ", ".join(dict.fromkeys(_SESSION_LANGUAGES.values()))
        raise NotOffered(f"language {show(language)} has no sessions; choose one of: {offered}", field="language")
    return known


def _read_idle_seconds(settings: Settings, idle_seconds: float | None) -> float:
    if idle_seconds is None:
        return settings.sessions.idle_seconds
    if isinstance(idle_seconds, bool) or not isinstance(idle_seconds, (int, float)):
        raise wrong_type("idle_seconds", "a number", idle_seconds)
    most = settings.sessions.idle_seconds_max
    if not 0 < idle_seconds <= most:
        raise InvalidExecution(
            f"idle_seconds is {show(idle_seconds)} but must be above 0 and at most {most:g}", field="idle_seconds"
        )
    return float(idle_seconds)


def _read_network(settings: Settings, network: object) -> bool:
    if network is not True:
        raise wrong_type("network", "true or false", network)
    if not settings.network.offered:
        raise NotOffered(
            "network is not offered here; leave it out or send false (the operator offers it: network.offered)",
            field="network",
        )
    return True


def _read_tools(tools: bool | Sequence[str], language: str = "python") -> tuple[str, ...]:
    """Only their form; the engine's ToolHost knows which ones exist."""
    if language != "python":
        raise InvalidExecution("tools can be called from Python programs only; leave them out", field="tools")
    if tools is True:
        return (ALL_TOOLS,)
    names = sequence("tools", tools)
    for name in names:
        if not isinstance(name, str) or not 0 < len(name) <= _TOOL_NAME_CHARACTERS_MAX:
            raise wrong_type("each of tools", "the name of a tool", name)
    return tuple(names)


def _check_code(settings: Settings, code: str) -> str:
    size = len(code) if type(code) is str and code.isascii() else measure("code", code)
    if size > settings.request.code_bytes:
        raise too_large("code", size, settings.request.code_bytes, "put data into files instead")
    if not code or code.isspace():
        raise InvalidExecution("code is blank; send a program", field="code")
    if "\0" in code:
        raise InvalidExecution(
            f"code has a NUL character at position {code.index(chr(0))}, which no Python source may; remove it or "
            "write it as an escape (\\0)",
            field="code",
        )
    return code


def _resolve_language(settings: Settings, language: object) -> str:
    """Its own name. Nothing is read for Python; every other toolchain must be on this machine."""
    if language in _PYTHON_NAMES:
        return "python"
    from belljar import languages  # most requests never name another

    known = languages.find_name(language) if isinstance(language, str) else None
    if known is None:
        offered = ", ".join(languages.load_all())
        raise UnknownLanguage(
            f"unknown language {show(language)}; choose one of: {offered} (GET /v1/languages and `belljar languages "
            "list` show their aliases)",
            languages=list(languages.load_all()),
        )
    if settings.backend == "container":
        return known  # an image has toolchains of its own
    languages.installed_toolchains(settings).check_available(known)
    return known


def _source_of(language: str, code: str) -> str:
    if language == "python":
        return "main.py"
    from belljar import languages

    return languages.load_one(language).plan(code).source


def _check_environment(environment: str) -> None:
    """Only the name's form; the back end knows which ones exist."""
    try:
        if _IMAGE.fullmatch(environment):
            return
        check_environment_name(environment)
    except (InvalidSettings, TypeError):
        raise UnknownEnvironment(
            f"environment {show(environment)} cannot be a name; use one that the server lists",
            environment=show(environment),
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
    if isinstance(coverage, NestedObject):
        coverage = coverage.given()
    if not isinstance(coverage, Mapping):
        raise wrong_type("coverage", "true, false or a mapping such as {'branch': true}", coverage)
    unknown = [name for name in coverage if name != "branch"]
    if unknown:
        raise InvalidExecution(f"coverage has no {show(unknown[0])}; it takes branch only", field="coverage")
    if not isinstance(coverage["branch"], bool):
        raise wrong_type("coverage.branch", "true or false", coverage["branch"])
    return Coverage(branch=coverage["branch"])


def _read_stdin(settings: Settings, stdin: object) -> bytes:
    if isinstance(stdin, str):
        measure("stdin", stdin)
        stdin = stdin.encode()
    elif not isinstance(stdin, (bytes, bytearray, memoryview)):
        raise wrong_type("stdin", "a string or bytes", stdin)
    content = bytes(stdin)
    if len(content) > settings.request.stdin_bytes:
        raise too_large("stdin", len(content), settings.request.stdin_bytes, "send it as a file and open that")
    return content


def _read_args(settings: Settings, args: Sequence[str]) -> tuple[str, ...]:
    _check_env_size(settings, len(sequence("args", args)))  # each takes a byte at least
    size = 0
    for at, arg in enumerate(args):
        if type(arg) is str and arg.isascii() and "\0" not in arg:
            size += len(arg) + 1
        else:
            size += measure_word(f"args[{at}]", arg)
    _check_env_size(settings, size)
    return tuple(args)


def _read_env(settings: Settings, env: Mapping[str, str], args: Sequence[str]) -> dict[str, str]:
    if not isinstance(env, Mapping):
        raise wrong_type("env", "a mapping of names to values", env)
    _check_env_size(settings, 2 * len(env))
    size = sum(len(arg.encode()) + 1 for arg in args)
    for name, value in env.items():
        size += measure_word("a name in env", name)
        if not name or "=" in name:
            raise InvalidExecution(f"env name {show(name)} must not be empty or contain '='; rename it", field="env")
        if name.startswith(_RESERVED_ENV_PREFIX):
            raise InvalidExecution(
                f"env name {show(name)} is reserved: names that start with {_RESERVED_ENV_PREFIX} are ours; rename it",
                field="env",
            )
        size += measure_word(f"env[{show(name)}]", value)
    _check_env_size(settings, size)
    return dict(env)


def _check_env_size(settings: Settings, size: int) -> None:
    if size > settings.request.env_bytes:
        raise too_large("args and env together", size, settings.request.env_bytes, "use stdin or files for data")
