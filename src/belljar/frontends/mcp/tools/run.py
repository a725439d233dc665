"""The tool run_code, and how every tool prepares a program and shows its outcome.

Text comes first, pictures are images, files are resources.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
from collections.abc import Sequence
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta

from belljar.contract.errors import InvalidExecution
from belljar.contract.execution import Display, Execution, Outcome, Status
from belljar.contract.files import File
from belljar.contract.request import CellRequest, ExecutionRequest
from belljar.engine.admission.request import admit, admit_cell
from belljar.frontends.mcp.tool_call import (
    EMBEDDED_BYTES,
    Call,
    Json,
    Tool,
    mime_of,
    resource_block,
    text_block,
    uri_of,
)

GROUP = "native"
_IMAGES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})

_WHY = {
    Status.FAILED: "the program failed",
    Status.CRASHED: "the program was ended by a signal",
    Status.TIMED_OUT: "the program ran out of time; do less, or ask for a longer timeout",
    Status.OUT_OF_MEMORY: "the program needed more memory than it may have; work on smaller pieces",
    Status.OUTPUT_LIMIT: "the program flooded its output and was ended; print less",
    Status.DENIED: "the sandbox refused what the program tried",
    Status.COMPILE_FAILED: "the program did not compile",
    Status.CANCELLED: "the call was cancelled",
}
_SILENT = "(the program ended well and printed nothing; print the values you want to see)"

_NUMBER_OR_NULL = {"type": ["integer", "null"]}
_TEXT_OR_NULL = {"type": ["string", "null"]}

#: The schema of what `_summarize` returns.
OUTCOME_SCHEMA: Json = {
    "type": "object",
    "properties": {
        "status": {
            "type": "string",
            "enum": [str(status) for status in Status],
            "description": "ok: it ended by itself with exit code 0",
        },
        "exit_code": _NUMBER_OR_NULL,
        "signal": _TEXT_OR_NULL,
        "stdout": {"type": "string"},
        "stderr": {"type": "string"},
        "truncated": {
            "type": "object",
            "properties": {"stdout": {"type": "boolean"}, "stderr": {"type": "boolean"}},
            "required": ["stdout", "stderr"],
        },
        "result": {**_TEXT_OR_NULL, "description": "the value of a cell's last expression, as text"},
        "error": {
            "type": ["object", "null"],
            "properties": {
                "type": {"type": "string"},
                "message": {"type": "string"},
                "traceback": {"type": "array", "items": {"type": "string"}},
            },
            "required": ["type", "message", "traceback"],
            "description": "the uncaught exception of a Python program",
        },
        "compile_output": _TEXT_OR_NULL,
        "images": {"type": "integer", "description": "how many pictures are in the content"},
        "artifacts": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "path": {"type": "string"},
                    "bytes": {"type": "integer"},
                    "mime": {"type": "string"},
                    "uri": {**_TEXT_OR_NULL, "description": "of the resource in the content; null if too large"},
                },
                "required": ["path", "bytes", "mime", "uri"],
            },
        },
        "session_id": _TEXT_OR_NULL,
        "cell": _NUMBER_OR_NULL,
        "usage": {
            "type": "object",
            "properties": {
                "wall_seconds": {"type": "number"},
                "cpu_seconds": {"type": "number"},
                "memory_peak_bytes": {"type": "integer"},
            },
            "required": ["wall_seconds", "cpu_seconds", "memory_peak_bytes"],
        },
    },
    "required": ["status", "exit_code", "stdout", "stderr", "truncated", "images", "artifacts", "usage"],
}


class GivenFile(msgspec.Struct, forbid_unknown_fields=True):
    """A file for the work directory."""

    path: Annotated[str, Meta(description="relative to the work directory, such as data/a.csv")]
    content: Annotated[str, Meta(description="the text, or base64 of the bytes")]
    encoding: Literal["utf-8", "base64"] = "utf-8"

    def read(self, field: str) -> bytes:
        """The content as bytes. Raises InvalidExecution if it does not have the given encoding."""
        if self.encoding == "utf-8":
            return self.content.encode("utf-8", "surrogatepass")
        try:
            return base64.b64decode(self.content, validate=True)
        except (binascii.Error, ValueError):
            raise InvalidExecution(
                f"{field}.content is not base64; encode it again, or use encoding 'utf-8'", field=field
            ) from None


class RunCode(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of run_code."""

    code: Annotated[str, Meta(description="the whole program; print what you want to see")]
    language: Annotated[str, Meta(description="as list_languages names it; a session keeps its own")] = "python"
    stdin: Annotated[str, Meta(description="what the program reads from standard input")] = ""
    files: Annotated[list[GivenFile], Meta(description="put into the work directory before the program starts")] = []
    artifacts: Annotated[
        list[str], Meta(description="globs of files to bring back, such as ['*.csv', 'out/**']; none by default")
    ] = []
    session_id: Annotated[
        str | None, Meta(description="run as the next cell of this session, with its variables and files")
    ] = None
    timeout: Annotated[
        Annotated[float, Meta(gt=0)] | None, Meta(description="seconds; the server has a default and a ceiling")
    ] = None


async def run_code(call: Call, given: RunCode) -> Json:
    files = [File(path=each.path, content=each.read(f"files[{at}]")) for at, each in enumerate(given.files)]
    if given.session_id is None:
        execution = prepare(call, given.code, given.language, stdin=given.stdin, files=files, given=given)
        return show(await call.run(execution), is_structured=call.config.is_structured)
    if given.stdin:
        raise InvalidExecution("stdin cannot be given to a session's cell; write it to a file instead", field="stdin")
    sessions = await call.sessions()
    state = sessions.get(call.caller.owner, given.session_id)
    request = CellRequest(given.code, artifacts=given.artifacts, timeout=given.timeout)
    cell = admit_cell(call.caller.settings, state.limits, request, call.caller.name)
    for file in files:
        await call.wait(sessions.write_file(call.caller.owner, state.id, file.path, file.content))
    outcome = await call.run_cell(state.id, cell)
    return show(outcome, state.id, is_structured=call.config.is_structured)


def prepare(
    call: Call,
    code: str,
    language: str,
    *,
    stdin: str = "",
    files: list[File] | None = None,
    given: RunCode | None = None,
    limits: dict[str, float] | None = None,
) -> Execution:
    """The execution for the engine, with what this server gives every program.

    Raises:
        CallerError: the request cannot be accepted.
    """
    request = ExecutionRequest(
        code,
        language=language,
        stdin=stdin,
        files=files or None,
        env=call.config.env,
        artifacts=given.artifacts if given else (),
        timeout=given.timeout if given else None,
        limits=limits,
        network=call.has_network,
    )
    execution = admit(call.caller.settings, request, call.caller.name)
    environment = call.environment_of(execution.language)
    if environment != "default":
        execution = dataclasses.replace(execution, environment=environment)
    return execution


def show(outcome: Outcome, session_id: str | None = None, *, is_structured: bool = True) -> Json:
    """The result of a program or cell. A program that failed is a result, not an error of the tool."""
    shown = sort_displays(outcome.displays)
    images = [
        {"type": "image", "data": base64.b64encode(each.content).decode("ascii"), "mimeType": each.mime}
        for each in shown.images
    ]
    place = f"session://{session_id}/files/" if session_id else f"sandbox://executions/{outcome.id}/"
    files, artifacts = _embed(outcome.artifacts, place)
    others = [
        resource_block(f"{place}display-{number}", each.content, each.mime)
        for number, each in enumerate(shown.others, 1)
    ]
    text, rest = describe_outcome(outcome, artifacts), [*images, *others, *files]
    answer: Json = {"content": [*([text_block(text)] if text or not rest else []), *rest], "isError": False}
    if is_structured:
        answer["structuredContent"] = _summarize(outcome, session_id, len(images), artifacts)
    return answer


def describe_outcome(outcome: Outcome, artifacts: Sequence[Json] = ()) -> str:
    """A program's output as one text: only stdout if it succeeded, else also what went wrong."""
    parts = [outcome.stdout.rstrip("\n")] if outcome.stdout.strip() else []
    if outcome.stdout_cut:
        parts.append("[stdout was cut here: it is longer than the limit]")
    parts += [_text(each) for each in sort_displays(outcome.displays).texts]
    if outcome.compilation is not None and outcome.compilation.status is not Status.OK:
        parts.append(_join(outcome.compilation.stdout, outcome.compilation.stderr))
    if outcome.stderr.strip():
        parts.append(f"[stderr]\n{outcome.stderr.rstrip()}")
    if outcome.stderr_cut:
        parts.append("[stderr was cut here: it is longer than the limit]")
    if outcome.status is not Status.OK:
        parts.append(f"[{explain(outcome)}]")
    for each in artifacts:
        lost = "" if each["uri"] else ", too large to be returned"
        parts.append(f"[file {each['path']}: {each['bytes']} bytes{lost}]")
    if not parts and not outcome.displays:
        parts.append(_SILENT)
    return "\n".join(parts)


def explain(outcome: Outcome) -> str:
    """One line on why a program did not succeed."""
    how = outcome.signal or (None if outcome.exit_code is None else f"exit code {outcome.exit_code}")
    detail = f", {how}" if how and outcome.status in (Status.FAILED, Status.CRASHED) else ""
    return f"{outcome.status}: {_WHY.get(outcome.status, 'it did not end well')}{detail}"


class Shown(NamedTuple):
    """What a program displayed, each object in the form that is most useful to a model."""

    images: list[Display]
    texts: list[Display]
    others: list[Display]


def sort_displays(displays: Sequence[Display]) -> Shown:
    """Prefer a picture to the text that names it, and text to equivalent HTML."""
    objects: dict[Any, list[Display]] = {}
    for at, each in enumerate(displays):
        objects.setdefault(("alone", at) if each.bundle is None else each.bundle, []).append(each)
    shown = Shown([], [], [])
    for forms in objects.values():
        picture = next((each for each in forms if each.mime in _IMAGES), None)
        plain = next((each for each in forms if each.mime == "text/plain"), None)
        if picture is not None:
            shown.images.append(picture)
        elif plain is not None:
            shown.texts.append(plain)
        else:
            shown.others.append(forms[0])
    return shown


def _text(display: Display) -> str:
    return display.content.decode("utf-8", "replace")


def _embed(files: Sequence[File], place: str) -> tuple[list[Json], list[Json]]:
    """The files that fit, as resources, and a list of all files."""
    blocks, listed, left = [], [], EMBEDDED_BYTES
    for file in files:
        uri, mime, size = uri_of(place, file.path), mime_of(file.path), len(file.content)
        fits = size <= left
        if fits:
            left -= size
            blocks.append(resource_block(uri, file.content, mime))
        listed.append({"path": file.path, "bytes": size, "mime": mime, "uri": uri if fits else None})
    return blocks, listed


def _summarize(outcome: Outcome, session_id: str | None, images: int, artifacts: list[Json]) -> Json:
    error, compilation = outcome.error, outcome.compilation
    values = [_text(each) for each in outcome.displays if each.mime == "text/plain" and each.is_result]
    return {
        "status": str(outcome.status),
        "exit_code": outcome.exit_code,
        "signal": outcome.signal,
        "stdout": outcome.stdout,
        "stderr": outcome.stderr,
        "truncated": {"stdout": outcome.stdout_cut, "stderr": outcome.stderr_cut},
        "result": values[-1] if values else None,
        "error": None
        if error is None
        else {"type": error.type, "message": error.message, "traceback": list(error.traceback)},
        "compile_output": None if compilation is None else _join(compilation.stdout, compilation.stderr),
        "images": images,
        "artifacts": artifacts,
        "session_id": session_id,
        "cell": outcome.cell,
        "usage": {
            "wall_seconds": round(outcome.usage.wall_seconds, 6),
            "cpu_seconds": round(outcome.usage.cpu_seconds, 6),
            "memory_peak_bytes": outcome.usage.memory_peak_bytes,
        },
    }


def _join(*texts: str) -> str:
    return "\n".join(text.rstrip() for text in texts if text.strip())


RUN_CODE = Tool(
    name="run_code",
    title="Run code",
    description=(
        "Run a program in a sandbox and return what it printed. Only printed output comes back, so print every result "
        "you need. Without session_id each run starts afresh; with one (from open_session) variables, imports and "
        "files stay. Python has numpy, pandas, matplotlib and more; shown or open figures come back as images. Write "
        "files to the current directory and name them in `artifacts` to get them back. There is no network unless "
        "the operator allowed it. A program that fails is reported with its status, exit code and stderr."
    ),
    takes=RunCode,
    call=run_code,
    group=GROUP,
    gives=OUTCOME_SCHEMA,
)
