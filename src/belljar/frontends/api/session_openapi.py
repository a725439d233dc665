"""The session calls, as /openapi.json and /docs describe them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from belljar.frontends.api.bodies import BranchBody, CellBody, SessionBody
from belljar.frontends.api.openapi_parts import (
    BOOLEAN,
    INTEGER,
    NULLABLE_STRING,
    STRING,
    WITH_BODY,
    WITH_KEY,
    json_of,
    list_of,
    object_of,
    operation,
    ref,
    streams,
)

SESSION_BODIES = (SessionBody, CellBody, BranchBody)

_TIME = {"type": "string", "format": "date-time"}
_RAW: Mapping[str, Any] = {"application/octet-stream": {"schema": {}}}

SESSION_ANSWERS: Mapping[str, Any] = {
    "Session": object_of(
        {
            "id": STRING,
            "language": STRING,
            "environment": STRING,
            "state": {"enum": ["idle", "busy"]},
            "cells": INTEGER,
            "memory_bytes": INTEGER,
            "created_at": _TIME,
            "last_used_at": _TIME,
            "expires_at": _TIME,
            "parent": NULLABLE_STRING,
            "limits": ref("Limits"),
        }
    ),
    "Sessions": object_of({"sessions": list_of(ref("Session"))}),
    "CellOutcome": {"allOf": [ref("Outcome"), object_of({"cell": INTEGER})]},
    "Interrupted": object_of({"interrupted": BOOLEAN}),
    "WorkFiles": object_of({"files": list_of(object_of({"path": STRING, "bytes": INTEGER, "modified_at": _TIME}))}),
}


def _parameter(name: str, meaning: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "description": meaning, "schema": {**STRING, "minLength": 1}}


def _at(parameters: list[dict[str, Any]], **methods: dict[str, Any]) -> dict[str, Any]:
    return {method: {**described, "parameters": parameters} for method, described in methods.items()}


def _example(name: str, example: Mapping[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": ref(name), "example": dict(example)}}


_ID = [_parameter("id", "of a session that this key opened")]
_FILE = [*_ID, _parameter("path", "in the work directory; may have several segments")]

_GET = (*WITH_KEY, 404)
_POST = (*WITH_BODY, 404)
_ON_FILE = (*WITH_KEY, 404, 422, 429)

SESSION_PATHS: Mapping[str, Any] = {
    "/v1/sessions": {
        "get": operation("sessions", "The sessions of this key.", json_of(ref("Sessions")), WITH_KEY),
        "post": operation(
            "open_session",
            "Open a session: an interpreter that stays.",
            json_of(ref("Session")),
            (*WITH_BODY, 409),
            "Memory, disk and processes in `limits` are for the session's whole life, times for each cell. Unused for "
            "`idle_seconds`, it is closed.",
            _example("SessionBody", {"language": "python", "idle_seconds": 300}),
            status=201,
            needs_body=False,
        ),
    },
    "/v1/sessions/{id}": _at(
        _ID,
        get=operation("session", "One session.", json_of(ref("Session")), _GET),
        delete=operation("close_session", "Close a session; all it started is gone with it.", {}, _GET, status=204),
    ),
    "/v1/sessions/{id}/execute": _at(
        _ID,
        post=operation(
            "run_cell",
            "Run one cell.",
            {**json_of(ref("CellOutcome")), **streams()},
            (*_POST, 409),
            "The answer and the streams are those of `/v1/execute`, with the number of the cell. The value of the last "
            "expression is a display `text/plain`. One cell runs at a time: another waits, or with `wait` false is "
            "answered 409. Hanging up interrupts the cell; the session lives on.",
            _example("CellBody", {"code": "x = 41\nx + 1", "timeout": 5}),
        ),
    ),
    "/v1/sessions/{id}/branch": _at(
        _ID,
        post=operation(
            "branch_session",
            "Copy the live state into new sessions.",
            json_of(ref("Sessions")),
            (*_POST, 409),
            "Each has its own processes and its own copy of the files. With `reseed` false the random generators go on "
            "alike in all of them.",
            _example("BranchBody", {"count": 4}),
            needs_body=False,
        ),
    ),
    "/v1/sessions/{id}/interrupt": _at(
        _ID,
        post=operation(
            "interrupt_session",
            "KeyboardInterrupt in the cell that runs; the state survives.",
            json_of(ref("Interrupted")),
            _GET,
        ),
    ),
    "/v1/sessions/{id}/files": _at(
        _ID,
        get=operation("files", "The files of the work directory.", json_of(ref("WorkFiles")), (*_GET, 429)),
    ),
    "/v1/sessions/{id}/files/{path}": _at(
        _FILE,
        get=operation("read_file", "A file, as it is.", _RAW, (*_ON_FILE, 413)),
        put=operation(
            "write_file",
            "Make or replace a file; the body is its content.",
            {},
            (*_ON_FILE, 413),
            body=_RAW,
            status=204,
        ),
        delete=operation("delete_file", "Delete a file.", {}, _ON_FILE, status=204),
    ),
}
