"""From what a program did to what a model reads: text first, pictures as images, files as resources."""

from __future__ import annotations

import base64
import mimetypes
import urllib.parse
from collections.abc import Sequence
from typing import Any

from belljar.contract.execution import MIB, Display, Outcome, Status
from belljar.contract.files import File

Json = dict[str, Any]

EMBEDDED_BYTES = 8 * MIB  # of files in one answer; more would drown a client that parses it in one piece
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

#: The schema of `summarize`.
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


def text_block(text: str) -> Json:
    """A piece of text."""
    return {"type": "text", "text": text}


def say(text: str, structured: Json | None = None, *, is_error: bool = False) -> Json:
    """An answer of one text."""
    answer: Json = {"content": [text_block(text)], "isError": is_error}
    if structured is not None:
        answer["structuredContent"] = structured
    return answer


def show(outcome: Outcome, session_id: str | None = None, *, is_structured: bool = True) -> Json:
    """All that a program did. A program that failed is an answer, not an error of the tool."""
    images = pictures_of(outcome)
    place = f"session://{session_id}/files/" if session_id else f"sandbox://executions/{outcome.id}/"
    files, artifacts = _embed(outcome.artifacts, place)
    others = _other_displays(outcome, place)
    answer: Json = {
        "content": [text_block(tell(outcome, artifacts)), *images, *others, *files],
        "isError": False,
    }
    if is_structured:
        answer["structuredContent"] = _summarize(outcome, session_id, len(images), artifacts)
    return answer


def tell(outcome: Outcome, artifacts: Sequence[Json] = ()) -> str:
    """A program's output as one text: its stdout alone when all went well, else with what went wrong."""
    parts = [outcome.stdout.rstrip("\n")] if outcome.stdout.strip() else []
    if outcome.stdout_cut:
        parts.append("[stdout was cut here: it is longer than the limit]")
    if (result := result_of(outcome)) is not None:
        parts.append(result)
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
    """One line on why a program did not end well."""
    how = outcome.signal or (None if outcome.exit_code is None else f"exit code {outcome.exit_code}")
    detail = f", {how}" if how and outcome.status in (Status.FAILED, Status.CRASHED) else ""
    return f"{outcome.status}: {_WHY.get(outcome.status, 'it did not end well')}{detail}"


def result_of(outcome: Outcome) -> str | None:
    """The text that a session shows of its last expression."""
    texts = [each.content.decode("utf-8", "replace") for each in outcome.displays if each.mime == "text/plain"]
    return "\n".join(texts) if texts else None


def pictures_of(outcome: Outcome) -> list[Json]:
    """Pictures as image content."""
    return [
        {"type": "image", "data": base64.b64encode(each.content).decode("ascii"), "mimeType": each.mime}
        for each in outcome.displays
        if each.mime in _IMAGES
    ]


def resource_block(uri: str, content: bytes, mime: str) -> Json:
    """A file inside an answer: as text if it is some, else in base64."""
    return {"type": "resource", "resource": resource_contents(uri, content, mime)}


def resource_contents(uri: str, content: bytes, mime: str) -> Json:
    """As resources/read gives it."""
    if mime.startswith("text/") or mime in ("application/json", "image/svg+xml"):
        try:
            return {"uri": uri, "mimeType": mime, "text": content.decode()}
        except UnicodeDecodeError:
            pass
    return {"uri": uri, "mimeType": mime, "blob": base64.b64encode(content).decode("ascii")}


def mime_of(path: str) -> str:
    """By the name alone: the content is the program's, and only the reader decides what to make of it."""
    kind, encoding = mimetypes.guess_type(path, strict=False)
    return kind if kind and not encoding else "application/octet-stream"


def uri_of(place: str, path: str) -> str:
    """The address of a file."""
    return place + urllib.parse.quote(path)


def _embed(files: Sequence[File], place: str) -> tuple[list[Json], list[Json]]:
    """The files as resources, as far as they fit, and a list of all of them."""
    blocks, listed, left = [], [], EMBEDDED_BYTES
    for file in files:
        uri, mime, size = uri_of(place, file.path), mime_of(file.path), len(file.content)
        fits = size <= left
        if fits:
            left -= size
            blocks.append(resource_block(uri, file.content, mime))
        listed.append({"path": file.path, "bytes": size, "mime": mime, "uri": uri if fits else None})
    return blocks, listed


def _other_displays(outcome: Outcome, place: str) -> list[Json]:
    """Rich output that is neither picture nor text; left out where a plain text says the same."""
    if any(each.mime == "text/plain" for each in outcome.displays):
        return []
    rest = [each for each in outcome.displays if each.mime not in _IMAGES]
    return [_display_block(each, f"{place}display-{number}") for number, each in enumerate(rest, 1)]


def _display_block(display: Display, uri: str) -> Json:
    return resource_block(uri, display.content, display.mime)


def _summarize(outcome: Outcome, session_id: str | None, images: int, artifacts: list[Json]) -> Json:
    error, compilation = outcome.error, outcome.compilation
    return {
        "status": str(outcome.status),
        "exit_code": outcome.exit_code,
        "signal": outcome.signal,
        "stdout": outcome.stdout,
        "stderr": outcome.stderr,
        "truncated": {"stdout": outcome.stdout_cut, "stderr": outcome.stderr_cut},
        "result": result_of(outcome),
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
