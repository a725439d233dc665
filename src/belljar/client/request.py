"""What is asked, as the body of a request.

Only what the caller names is sent, so that the server's defaults stay the server's. Nothing is judged here that the
server judges as well; what cannot be written as JSON at all is refused in the same words it would use.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Unpack, cast

from belljar.contract.errors import InvalidExecution
from belljar.contract.execution import Coverage, Limits
from belljar.contract.files import File
from belljar.contract.request import ProgramKeywords
from belljar.contract.restriction import Restriction

Body = dict[str, Any]
Files = Mapping[str, str | bytes | Path] | Iterable[File | Path]
Compare = Literal["exact", "trimmed", "tokens"]


class RunOptions(ProgramKeywords, total=False):
    """What may be asked beside the code. `timeout` is in seconds of wall time; a Path among `files` is read here."""

    files: Files | None
    tools: bool | Sequence[str]


Program = str | Mapping[str, Any]  # the code, or a mapping with "code" and the names of Asked


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One input of a program under test, and the standard output that would be right; what is None is the batch's."""

    stdin: str | None = None
    expected_stdout: str | None = None
    args: Sequence[str] | None = None


def build_body(code: str, **asked: Unpack[RunOptions]) -> Body:
    """The body of POST /v1/execute; reads the files that are named by a Path.

    Raises:
        InvalidExecution: something cannot be sent.
    """
    limits = write_limits(asked.get("limits"), asked.get("timeout"), asked.get("memory_mb"))
    return {"code": code, **write_fields("run", asked, RunOptions), **limits}


def write_fields(call: str, asked: Mapping[str, Any], known: type) -> Body:
    """Every field that is set, as the wire has it, but limits and times.

    Raises:
        TypeError: a name is not one of `known`.
        InvalidExecution: something cannot be sent.
    """
    body: Body = {}
    for name, value in asked.items():
        if name not in known.__annotations__:
            raise TypeError(f"{call}() got an unexpected keyword argument {name!r}")
        if name in ("limits", "timeout", "memory_mb"):
            continue
        written = _WRITERS[name](value) if name in _WRITERS else value
        if written is not None:
            body[name] = written
    return body


def build_program(program: object) -> Body:
    """The body of one of many programs."""
    if isinstance(program, str):
        return build_body(program)
    if not isinstance(program, Mapping) or "code" not in program:
        raise InvalidExecution("each program must be a string, or a mapping with 'code' in it", field="programs")
    names = ("code", *RunOptions.__annotations__)
    unknown = program.keys() - set(names)
    if unknown:
        raise InvalidExecution(
            f"a program has no {min(map(repr, unknown))}; choose from {', '.join(names)}", field="programs"
        )
    return build_body(**cast(Any, program))


def build_batch(
    programs: str | Iterable[Program],
    cases: Iterable[Case | Mapping[str, Any]] | None,
    compare: Compare | None,
    stop_on_failure: bool | None,
    asked: RunOptions,
) -> Body:
    """The body of POST /v1/batch: one program against cases, or programs of their own."""
    if isinstance(programs, str):
        if cases is None:
            raise InvalidExecution(
                "a batch of one program needs cases; give cases=[…], or a list of programs", field="cases"
            )
        judged = {"compare": compare, "stop_on_failure": stop_on_failure}
        body = build_body(programs, **asked) | {"cases": [_write_case(each) for each in cases]}
        return body | {name: value for name, value in judged.items() if value is not None}
    if cases is not None or compare is not None or stop_on_failure is not None or asked:
        raise InvalidExecution(
            "cases and what else is asked go with one program; programs of their own each carry theirs", field="cases"
        )
    return {"executions": [build_program(each) for each in programs]}


def count_programs(body: Body) -> int:
    """How many results the answer to a batch must have."""
    return len(body["cases"] if "cases" in body else body["executions"])


def encode(body: Body) -> bytes:
    """The body as it is sent.

    Raises:
        InvalidExecution: it holds what JSON cannot.
    """
    try:
        written = json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidExecution(f"the request cannot be written as JSON: {error}") from error
    return encode_text(written)


def encode_text(text: str) -> bytes:
    """Text as it is sent. Raises InvalidExecution when it is no valid Unicode."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidExecution(
            f"the request has a lone surrogate (U+{ord(error.object[error.start]):04X}), which is not a character; "
            "send valid Unicode, and bytes as files"
        ) from None


def wall_seconds_of(body: Body) -> float | None:
    """How long the program of this body may run, if the caller said so."""
    limits = body.get("limits")
    asked = body.get("timeout", limits.get("wall_seconds") if isinstance(limits, dict) else None)
    return float(asked) if isinstance(asked, (int, float)) and asked > 0 else None


async def build_aside(build: Callable[..., Body], *given: Any, reads: Iterable[object], **asked: Any) -> Body:
    """Build a body, in a thread if that reads files."""
    if reads_paths(*reads):
        return await asyncio.to_thread(build, *given, **asked)
    return build(*given, **asked)


def reads_paths(*asked: object) -> bool:
    """Whether building the bodies of these programs would read files, which no event loop should."""
    for each in asked:
        files = each.get("files") if isinstance(each, Mapping) else None
        contents = files.values() if isinstance(files, Mapping) else files
        if not isinstance(contents, Iterable) or isinstance(contents, (str, bytes)):
            continue
        if isinstance(contents, Sequence) or isinstance(files, Mapping):
            if any(isinstance(content, Path) for content in contents):
                return True
        else:
            return True  # an iterator: looking would use it up
    return False


def _as_text(stdin: str | bytes) -> str:
    if isinstance(stdin, str):
        return stdin
    if not isinstance(stdin, (bytes, bytearray)):
        raise wrong_type("stdin", "a string or bytes", stdin)
    try:
        return stdin.decode()
    except UnicodeDecodeError:
        raise InvalidExecution(
            "stdin is not UTF-8, and the API takes text; send it as a file and open that", field="stdin"
        ) from None


def as_list(field: str, given: object) -> list[Any]:
    """Refuse a bare string: it would be taken apart into its letters."""
    if isinstance(given, (str, bytes)) or not isinstance(given, Sequence):
        raise wrong_type(field, "a list of strings", given)
    return list(given)


def as_mapping(field: str, given: object) -> dict[str, Any]:
    """Refuse what has no names."""
    if not isinstance(given, Mapping):
        raise wrong_type(field, "a mapping", given)
    return dict(given)


def _write_tools(tools: object) -> bool | list[Any] | None:
    if tools is None or isinstance(tools, bool):
        return tools
    names = as_list("tools", tools)
    for each in names:
        if not isinstance(each, str):
            raise wrong_type("each of tools", "the name of a tool that the server has", each)
    return names


def _write_coverage(coverage: object) -> object:
    if isinstance(coverage, Coverage):
        return {"branch": coverage.branch}
    return dict(coverage) if isinstance(coverage, Mapping) else coverage


def _write_restriction(restrict: object) -> object:
    if isinstance(restrict, Restriction):
        return {"imports": restrict.imports, "max_print_length": restrict.print_characters}
    return None if restrict is None else as_mapping("restrict", restrict)


def _write_files(files: object) -> list[dict[str, str]]:
    if isinstance(files, Mapping):
        return [_write_file(path, content) for path, content in files.items()]
    if isinstance(files, (str, bytes)) or not isinstance(files, Iterable):
        raise wrong_type("files", "a mapping of paths to contents, or a sequence of File", files)
    return [
        _write_file(each.name, each) if isinstance(each, Path) else _write_file(each.path, each.content)
        for each in map(_check_file, files)
    ]


def _check_file(given: object) -> File | Path:
    if not isinstance(given, (File, Path)):
        raise wrong_type("each of files", "a File or a Path", given)
    return given


def _write_file(path: object, content: object) -> dict[str, str]:
    if not isinstance(path, str):
        raise wrong_type("a path in files", "a string", path)
    if isinstance(content, Path):
        content = read_local(content)
    if isinstance(content, str):
        return {"path": path, "content": content, "encoding": "utf-8"}
    if not isinstance(content, (bytes, bytearray, memoryview)):
        raise wrong_type(f"files[{path!r}]", "a string, bytes or a Path", content)
    return {"path": path, "content": base64.b64encode(content).decode("ascii"), "encoding": "base64"}


#: What the wire has in another form than Python; None is not sent.
_WRITERS: Mapping[str, Callable[[Any], object]] = {
    "stdin": lambda stdin: _as_text(stdin) or None,
    "args": lambda args: as_list("args", args) or None,
    "env": lambda env: as_mapping("env", env) if env else None,
    "files": lambda files: _write_files(files) if files else None,
    "artifacts": lambda globs: as_list("artifacts", globs) or None,
    "tools": _write_tools,
    "coverage": _write_coverage,
    "restrict": _write_restriction,
}


def read_local(path: Path) -> bytes:
    """A file of this machine that is to be sent. Raises InvalidExecution when it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidExecution(f"files: cannot read {path}: {error.strerror}", field="files") from error


def write_limits(
    limits: Limits | Mapping[str, float] | None, timeout: float | None, memory_mb: float | None
) -> dict[str, Any]:
    """`limits` and `timeout` of the body, if set. A whole Limits is a base that the short names change."""
    if isinstance(limits, Limits):
        named = limits.as_json()
        if timeout is not None:
            named["wall_seconds"] = timeout
        if memory_mb is not None:
            named["memory_mb"] = memory_mb
        return {"limits": named}
    if limits is not None and not isinstance(limits, Mapping):
        raise wrong_type("limits", "a mapping of limits to numbers", limits)
    named = dict(limits or {})
    if memory_mb is not None and named.setdefault("memory_mb", memory_mb) != memory_mb:
        raise InvalidExecution("memory_mb and limits disagree; give one of them", field="memory_mb")
    return {**({"limits": named} if named else {}), **({} if timeout is None else {"timeout": timeout})}


def _write_case(case: object) -> Body:
    if isinstance(case, Mapping):
        return dict(case)
    if not isinstance(case, Case):
        raise wrong_type("each of cases", "a Case or a mapping", case)
    args = None if case.args is None else as_list("args", case.args)
    given = {"stdin": case.stdin, "expected_stdout": case.expected_stdout, "args": args}
    return {name: value for name, value in given.items() if value is not None}


def wrong_type(field: str, wanted: str, given: object) -> InvalidExecution:
    """What to say about something that is of another type."""
    return InvalidExecution(f"{field} must be {wanted}, not {type(given).__name__}", field=field)
