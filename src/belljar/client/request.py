"""Builds the bodies of requests.

Only the fields that the caller names are sent, so that the server's defaults apply to all others. What the server
checks is not checked here; what cannot be written as JSON is refused with the message that the server would use.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from belljar.contract.errors import InvalidExecution
from belljar.contract.execution import Coverage, Limits
from belljar.contract.files import File
from belljar.contract.request import CellOptions, ProgramKeywords, SessionKeywords
from belljar.contract.restriction import Restriction
from belljar.portal import Program, refuse_unknown, split_program

Body = dict[str, Any]
Files = Mapping[str, str | bytes | Path] | Iterable[File | Path]
Compare = Literal["exact", "trimmed", "tokens"]


class RunOptions(ProgramKeywords, total=False):
    """The options of a program. `timeout` is in seconds of wall time; a Path among `files` is read here."""

    files: Files | None
    tools: bool | Sequence[str]


class SessionOptions(SessionKeywords, total=False):
    """The options of a session. Memory and disk are for its whole life, times for each cell."""

    files: Files | None
    tools: bool | Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One input of a program under test, and the standard output that is correct; None means the batch's own."""

    stdin: str | None = None
    expected_stdout: str | None = None
    args: Sequence[str] | None = None


def build_body(code: str, **fields: Any) -> Body:
    """Build the body of POST /v1/execute: `fields` are those of RunOptions. Reads each Path.

    Raises:
        InvalidExecution: something cannot be sent.
        TypeError: a field is unknown.
    """
    return {"code": code} | _write("run", RunOptions, fields)


def build_program(program: object) -> Body:
    """Build the body of one of many programs."""
    code, fields = split_program(program, RunOptions)
    return build_body(code, **fields)


def build_batch(
    programs: str | Iterable[Program],
    cases: Iterable[Case | Mapping[str, Any]] | None,
    compare: Compare | None,
    stop_on_failure: bool | None,
    options: RunOptions,
) -> Body:
    """Build the body of POST /v1/batch: one program with several cases, or several programs."""
    if isinstance(programs, str):
        if cases is None:
            raise InvalidExecution(
                "a batch of one program needs cases; give cases=[…], or a list of programs", field="cases"
            )
        body = build_body(programs, **options) | {"cases": [_write_case(each) for each in cases]}
        return body | _given({"compare": compare, "stop_on_failure": stop_on_failure})
    if cases is not None or compare is not None or stop_on_failure is not None or options:
        raise InvalidExecution(
            "cases and options go with one program; in a list, each program carries its own", field="cases"
        )
    return {"executions": [build_program(each) for each in programs]}


def build_session(**fields: Any) -> Body:
    """Build the body of POST /v1/sessions: `fields` are those of SessionOptions. Reads each Path.

    Raises:
        InvalidExecution: something cannot be sent.
        TypeError: a field is unknown.
    """
    body = _write("session", SessionOptions, fields)
    wall_seconds = body.pop("timeout", None)  # the API has no short name for it here
    if (
        wall_seconds is not None
        and body.setdefault("limits", {}).setdefault("wall_seconds", wall_seconds) != wall_seconds
    ):
        raise InvalidExecution("timeout and limits disagree; give one of them", field="timeout")
    return body


def build_cell(code: str, **fields: Any) -> Body:
    """Build the body of POST /v1/sessions/{id}/execute: `fields` are those of CellOptions.

    Raises:
        InvalidExecution: something cannot be sent.
        TypeError: a field is unknown.
    """
    body = {"code": code} | _write("run", CellOptions, fields)
    waits = body.pop("waits", None)
    return body if waits is None else {"wait": waits} | body


def read_content(content: object) -> bytes:
    """Return the bytes to upload; a Path is read here."""
    if isinstance(content, Path):
        return _read_local(content)
    if isinstance(content, str):
        return _encode_text(content)
    if not isinstance(content, (bytes, bytearray, memoryview)):
        raise _wrong_type("content", "a string, bytes or a Path", content)
    return bytes(content)


def encode(body: Body) -> bytes:
    """Encode a body.

    Raises:
        InvalidExecution: JSON cannot represent it.
    """
    try:
        written = json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidExecution(f"the request cannot be written as JSON: {error}") from error
    return _encode_text(written)


def _encode_text(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidExecution(
            f"the request has a lone surrogate (U+{ord(error.object[error.start]):04X}), which is not a character; "
            "send valid Unicode, and bytes as files"
        ) from None


async def build_aside(build: Callable[..., Body], *given: Any, reads: Iterable[object], **options: Any) -> Body:
    """Build a body, in a thread if that reads files. `reads` are the programs or options that may name them."""
    if _reads_paths(reads):
        return await asyncio.to_thread(build, *given, **options)
    return build(*given, **options)


def _reads_paths(programs: Iterable[object]) -> bool:
    """Whether building the bodies of these programs reads files, which must not block an event loop."""
    for each in programs:
        files = each.get("files") if isinstance(each, Mapping) else None
        contents = files.values() if isinstance(files, Mapping) else files
        if not isinstance(contents, Iterable) or isinstance(contents, (str, bytes)):
            continue
        if isinstance(contents, Sequence) or isinstance(files, Mapping):
            if any(isinstance(content, Path) for content in contents):
                return True
        else:
            return True  # an iterator: to look at it would consume it
    return False


# ---- the fields of a body


def _write(call: str, known: type, fields: Mapping[str, Any]) -> Body:
    """Write the fields as the API has them, without those that are None."""
    refuse_unknown(call, fields, known)
    if "memory_mb" in known.__annotations__:
        fields = _join_limits(fields)
    written = {name: _WRITERS[name](name, value) if name in _WRITERS else value for name, value in fields.items()}
    return _given(written)


def _given(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _join_limits(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Put `memory_mb` into `limits`; the short names override the values of a Limits, as in a Sandbox."""
    joined = dict(fields)
    limits, memory_mb = joined.pop("limits", None), joined.pop("memory_mb", None)
    if isinstance(limits, Limits):
        short = {"wall_seconds": joined.pop("timeout", None), "memory_mb": memory_mb}
        return joined | {
            "limits": limits.as_json() | {name: value for name, value in short.items() if value is not None}
        }
    if limits is not None and not isinstance(limits, Mapping):
        raise _wrong_type("limits", "a mapping of limits to numbers", limits)
    named = dict(limits or {})
    if memory_mb is not None and named.setdefault("memory_mb", memory_mb) != memory_mb:
        raise InvalidExecution("memory_mb and limits disagree; give one of them", field="memory_mb")
    return joined | {"limits": named}


def _write_stdin(field: str, stdin: object) -> str | None:
    if not isinstance(stdin, (str, bytes, bytearray)):
        raise _wrong_type(field, "a string or bytes", stdin)
    try:
        return (stdin if isinstance(stdin, str) else stdin.decode()) or None
    except UnicodeDecodeError:
        raise InvalidExecution(
            "stdin is not UTF-8, and the API takes text; send it as a file and open that", field=field
        ) from None


def _write_list(field: str, given: object) -> list[Any] | None:
    return _as_list(field, given) or None


def _as_list(field: str, given: object) -> list[Any]:
    """Refuse a bare string, which is a sequence of its letters."""
    if isinstance(given, (str, bytes)) or not isinstance(given, Sequence):
        raise _wrong_type(field, "a list of strings", given)
    return list(given)


def _write_mapping(field: str, given: object) -> dict[str, Any] | None:
    return _as_mapping(field, given) if given else None


def _as_mapping(field: str, given: object) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise _wrong_type(field, "a mapping", given)
    return dict(given)


def _write_tools(field: str, tools: object) -> bool | list[Any] | None:
    if tools is None or isinstance(tools, bool):
        return tools
    names = _as_list(field, tools)
    for each in names:
        if not isinstance(each, str):
            raise _wrong_type("each of tools", "the name of a tool that the server has", each)
    return names


def _write_coverage(field: str, coverage: object) -> object:
    if isinstance(coverage, Coverage):
        return {"branch": coverage.branch}
    return dict(coverage) if isinstance(coverage, Mapping) else coverage


def _write_restriction(field: str, restrict: object) -> dict[str, Any] | None:
    if isinstance(restrict, Restriction):
        return {"imports": restrict.imports, "max_print_length": restrict.print_characters}
    return None if restrict is None else _as_mapping(field, restrict)


def _write_files(field: str, files: object) -> list[dict[str, str]] | None:
    if not files:
        return None
    if isinstance(files, Mapping):
        return [_write_file(path, content) for path, content in files.items()]
    if isinstance(files, (str, bytes)) or not isinstance(files, Iterable):
        raise _wrong_type(field, "a mapping of paths to contents, or a sequence of File", files)
    return [_write_file(*_split_file(each)) for each in files]


def _split_file(given: object) -> tuple[str, bytes | Path]:
    if isinstance(given, Path):
        return given.name, given
    if isinstance(given, File):
        return given.path, given.content
    raise _wrong_type("each of files", "a File or a Path", given)


def _write_file(path: object, content: object) -> dict[str, str]:
    if not isinstance(path, str):
        raise _wrong_type("a path in files", "a string", path)
    if isinstance(content, Path):
        content = _read_local(content)
    if isinstance(content, str):
        return {"path": path, "content": content, "encoding": "utf-8"}
    if not isinstance(content, (bytes, bytearray, memoryview)):
        raise _wrong_type(f"files[{path!r}]", "a string, bytes or a Path", content)
    return {"path": path, "content": base64.b64encode(content).decode("ascii"), "encoding": "base64"}


def _read_local(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidExecution(f"files: cannot read {path}: {error.strerror}", field="files") from error


def _write_case(case: object) -> Body:
    if isinstance(case, Mapping):
        return dict(case)
    if not isinstance(case, Case):
        raise _wrong_type("each of cases", "a Case or a mapping", case)
    args = None if case.args is None else _as_list("args", case.args)
    return _given({"stdin": case.stdin, "expected_stdout": case.expected_stdout, "args": args})


def _wrong_type(field: str, wanted: str, given: object) -> InvalidExecution:
    return InvalidExecution(f"{field} must be {wanted}, not {type(given).__name__}", field=field)


# Fields that are not sent as they are given.
_WRITERS: Mapping[str, Callable[[str, Any], Any]] = {
    "stdin": _write_stdin,
    "args": _write_list,
    "artifacts": _write_list,
    "env": _write_mapping,
    "limits": _write_mapping,
    "files": _write_files,
    "tools": _write_tools,
    "coverage": _write_coverage,
    "restrict": _write_restriction,
}
