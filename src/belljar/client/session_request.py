"""What is asked of sessions, and every session route. Written once for both kinds of handle."""

from __future__ import annotations

import urllib.parse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, Unpack

from belljar.client import responses
from belljar.client.request import (
    Body,
    Files,
    as_mapping,
    encode,
    encode_text,
    read_local,
    wall_seconds_of,
    write_fields,
    write_limits,
    wrong_type,
)
from belljar.client.routes import QUESTION_SECONDS, WALL_SECONDS, Call
from belljar.contract.errors import InvalidExecution
from belljar.contract.execution import Outcome
from belljar.contract.files import check_relative_path
from belljar.contract.request import CellOptions, SessionKeywords
from belljar.contract.sessions import SessionState, WorkFile

_Read = TypeVar("_Read")


class SessionOptions(SessionKeywords, total=False):
    """What may be asked of a session. Memory and disk are for its whole life, times for each cell."""

    tools: bool | Sequence[str]
    files: Files | None


def build_session(**asked: Unpack[SessionOptions]) -> Body:
    """The body of POST /v1/sessions; reads the files that are named by a Path.

    Raises:
        InvalidExecution: something cannot be sent.
    """
    body = write_fields("session", asked, SessionOptions)
    written = write_limits(asked.get("limits"), asked.get("timeout"), asked.get("memory_mb"))
    limits, timeout = written.get("limits", {}), written.get("timeout")  # which has no name of its own on the wire
    if timeout is not None and limits.setdefault("wall_seconds", timeout) != timeout:
        raise InvalidExecution("timeout and limits disagree; give one of them", field="timeout")
    return {**body, "limits": limits} if limits else body


def build_cell(code: str, **asked: Unpack[CellOptions]) -> Body:
    """The body of POST /v1/sessions/{id}/execute.

    Raises:
        InvalidExecution: something cannot be sent.
    """
    body = {"code": code, **write_fields("run", asked, CellOptions)}
    if "waits" in body:
        body.setdefault("wait", body.pop("waits"))
    if limits := asked.get("limits"):
        body["limits"] = as_mapping("limits", limits)
    if (timeout := asked.get("timeout")) is not None:
        body["timeout"] = timeout
    return body


def read_content(content: object) -> bytes:
    """What is to be uploaded; a Path is read here."""
    if isinstance(content, Path):
        return read_local(content)
    if isinstance(content, str):
        return encode_text(content)
    if not isinstance(content, (bytes, bytearray, memoryview)):
        raise wrong_type("content", "a string, bytes or a Path", content)
    return bytes(content)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionCalls:
    """Makes a call for each route of one session."""

    id: str
    room_seconds: float
    wall_seconds: float = WALL_SECONDS  # of a cell that names none

    def state(self) -> Call[SessionState]:
        """GET /v1/sessions/{id}."""
        return self._call("GET", "", responses.read_session)

    def close(self) -> Call[None]:
        """DELETE /v1/sessions/{id}."""
        return self._call("DELETE", "", responses.read_nothing)

    def run(self, body: Body) -> Call[Outcome]:
        """POST …/execute."""
        return self._run(body, responses.read_outcome)

    def stream(self, body: Body) -> Call[bytes]:
        """POST …/execute for a stream, whose reader is an EventReader."""
        return self._run(body, bytes, is_stream=True)

    def branch(self, count: int, reseed: bool) -> Call[list[SessionState]]:
        """POST …/branch. Never sent twice by itself, as opening is not."""
        content = encode({"count": count, "reseed": reseed})
        return self._call("POST", "/branch", responses.read_sessions, content=content, runs_code=True)

    def interrupt(self) -> Call[bool]:
        """POST …/interrupt. Not sent twice: the second might meet the next cell."""
        return self._call("POST", "/interrupt", responses.read_interrupted, runs_code=True)

    def files(self) -> Call[list[WorkFile]]:
        """GET …/files."""
        return self._call("GET", "/files", responses.read_work_files)

    def upload(self, path: str, content: bytes) -> Call[None]:
        """PUT …/files/{path}."""
        at = _file_route(path)
        return self._call("PUT", at, responses.read_nothing, content=content, content_type="application/octet-stream")

    def download(self, path: str) -> Call[bytes]:
        """GET …/files/{path}."""
        return self._call("GET", _file_route(path), bytes)

    def delete(self, path: str) -> Call[None]:
        """DELETE …/files/{path}."""
        return self._call("DELETE", _file_route(path), responses.read_nothing, runs_code=True)

    def _run(self, body: Body, read: Callable[[bytes], _Read], is_stream: bool = False) -> Call[_Read]:
        wall_seconds = wall_seconds_of(body) or self.wall_seconds
        waiting_seconds = 0.0 if body.get("wait") is False else WALL_SECONDS  # for the cells of others
        return self._call(
            "POST",
            "/execute",
            read,
            content=encode(body),
            silence_seconds=self.room_seconds + wall_seconds + waiting_seconds,
            is_stream=is_stream,
            runs_code=True,
        )

    def _call(self, method: str, below: str, read: Callable[[bytes], _Read], **more: Any) -> Call[_Read]:
        path = f"/v1/sessions/{urllib.parse.quote(self.id, safe='')}{below}"
        more.setdefault("silence_seconds", QUESTION_SECONDS + self.room_seconds)
        return Call(method=method, path=path, read=read, **more)


def _file_route(path: str) -> str:
    """Checked here too: a path with '..' would be another route by the time it is sent."""
    return "/files/" + urllib.parse.quote(check_relative_path(path))
