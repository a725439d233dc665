"""The API described for machines (/openapi.json) and for people (/docs), from one source.

What requests may hold is taken from the types that read them; what is answered is written down here. Both are the
same for every installation, so nothing of this one is told.
"""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from typing import Any

import msgspec

from belljar import __version__
from belljar.contract.execution import Status
from belljar.frontends.api import openapi_parts as parts
from belljar.frontends.api.bodies import BatchBody, ExecuteBody
from belljar.frontends.api.session_openapi import SESSION_ANSWERS, SESSION_BODIES, SESSION_PATHS

_ref, _object, _list, _or_null = parts.ref, parts.object_of, parts.list_of, parts.or_null
_json, _streams, _operation = parts.json_of, parts.streams, parts.operation
_STRING, _INTEGER, _NUMBER, _BOOLEAN = parts.STRING, parts.INTEGER, parts.NUMBER, parts.BOOLEAN
_NULLABLE_STRING, _NULLABLE_INTEGER = parts.NULLABLE_STRING, parts.NULLABLE_INTEGER
_ALWAYS, _WITH_KEY, _WITH_BODY = parts.ALWAYS, parts.WITH_KEY, parts.WITH_BODY

_ANSWERS: Mapping[str, Any] = {
    "Error": _object({"error": _object({"code": _STRING, "message": _STRING, "details": {"type": "object"}})}),
    "Usage": _object(
        {
            "wall_seconds": _NUMBER,
            "cpu_seconds": _NUMBER,
            "memory_peak_bytes": _INTEGER,
            "queue_seconds": _NUMBER,
            "network": _object(
                dict.fromkeys(("connections", "refused", "sent_bytes", "received_bytes"), _INTEGER),
            ),
        },
        "network",
    ),
    "Display": _object({"mime": _STRING, "data": _STRING, "bundle": _INTEGER, "result": _BOOLEAN}, "bundle", "result"),
    "Artifact": _object({"path": _STRING, "bytes": _INTEGER, "encoding": {"const": "base64"}, "content": _STRING}),
    "CoverageReport": _object(
        {
            "percent": _NUMBER,
            "files": _list(
                _object(
                    {
                        "path": _STRING,
                        "percent": _NUMBER,
                        "executed": _list(_INTEGER),
                        "missing": _list(_INTEGER),
                        "missing_branches": _list(_list(_INTEGER)),
                    },
                    "missing_branches",
                )
            ),
        }
    ),
    "Outcome": _object(
        {
            "id": _STRING,
            "language": _STRING,
            "status": {"enum": [str(status) for status in Status]},
            "exit_code": _NULLABLE_INTEGER,
            "signal": _NULLABLE_STRING,
            "stdout": _STRING,
            "stderr": _STRING,
            "truncated": _object({"stdout": _BOOLEAN, "stderr": _BOOLEAN}),
            "error": _or_null(_object({"type": _STRING, "message": _STRING, "traceback": _list(_STRING)})),
            "displays": _list(_ref("Display")),
            "artifacts": _list(_ref("Artifact")),
            "compile": _or_null({"type": "object"}),
            "tool_calls": _list({"type": "object"}),
            "coverage": _or_null(_ref("CoverageReport")),
            "usage": _ref("Usage"),
        }
    ),
    "Event": _object({"event": _STRING}),
    "Result": {
        "description": "An outcome, with the verdict of a case; or only the error, if it could not be run.",
        "anyOf": [
            {"allOf": [_ref("Outcome"), {"type": "object", "properties": {"verdict": _STRING}}]},
            {
                "allOf": [
                    _ref("Error"),
                    {"type": "object", "properties": {"verdict": {"enum": ["not_run", "not_kept"]}}},
                ]
            },
        ],
    },
    "Results": _object({"results": _list(_ref("Result")), "passed": _INTEGER, "failed": _INTEGER}),
    "Limits": _object(
        dict.fromkeys(("wall_seconds", "cpu_seconds", "memory_mb", "output_kb", "disk_mb", "processes"), _NUMBER)
    ),
    "Languages": _object(
        {
            "languages": _list(
                _object(
                    {
                        "name": _STRING,
                        "title": _STRING,
                        "aliases": _list(_STRING),
                        "available": _BOOLEAN,
                        "version": _NULLABLE_STRING,
                        "install": _NULLABLE_STRING,
                    }
                )
            )
        }
    ),
    "Environments": _object(
        {
            "environments": _list(
                _object(
                    {
                        "name": _STRING,
                        "python": _STRING,
                        "packages": _list(_object({"name": _STRING, "version": _STRING})),
                        "warm": _BOOLEAN,
                    }
                )
            )
        }
    ),
    "Info": _object(
        {
            "version": _STRING,
            "backend": _STRING,
            "isolation": {
                "type": "object",
                "additionalProperties": _object({"state": {"enum": ["on", "off", "missing"]}, "detail": _STRING}),
            },
            "limits": _object({"default": _ref("Limits"), "ceiling": _ref("Limits")}),
        }
    ),
    "Health": _object({"status": {"const": "ok"}, "version": _STRING, "running": _INTEGER, "queued": _INTEGER}),
    "Home": _object({"name": _STRING, "message": _STRING, "version": _STRING, "docs": _STRING}),
}

_ERRORS = {
    400: "Not JSON, not declared to be JSON, invalid UTF-8, or no valid HTTP.",
    401: "No key, or one that is not known.",
    403: "Host or Origin not allowed, or the key may not do this.",
    404: "There is nothing here: no such path, session or file. `session_ended` says why a session is gone.",
    405: "The path exists, but does not take this method; see `Allow`.",
    409: "The session is busy, its id is taken, or it cannot be branched now.",
    413: "Body, file or code over the limit.",
    422: "Well-formed, but invalid: an unknown field or language, a limit above the ceiling, an unsafe path, or "
    "something this server does not offer.",
    429: "Over capacity or quota; see `Retry-After`.",
    503: "Draining, or the sandbox cannot start; see `Retry-After`.",
}


def _build_schema() -> dict[str, Any]:
    _, components = msgspec.json.schema_components([ExecuteBody, BatchBody, *SESSION_BODIES], ref_template=parts.REF)
    components["BatchBody"]["oneOf"] = [{"required": ["executions"]}, {"required": ["code", "cases"]}]
    schemas = {**components, **_ANSWERS, **SESSION_ANSWERS}
    execute_example = {"code": "print(input())", "stdin": "hi", "timeout": 5}
    batch_example = {
        "code": "a, b = map(int, input().split())\nprint(a + b)",
        "cases": [{"stdin": "1 2", "expected_stdout": "3\n"}, {"stdin": "2 2", "expected_stdout": "5\n"}],
    }
    paths = {
        "/v1/execute": {
            "post": _operation(
                "execute",
                "Run one program.",
                {**_json(_ref("Outcome")), **_streams()},
                _WITH_BODY,
                "A program that fails is 200 with a status word. With `Accept: application/x-ndjson` or "
                "`text/event-stream` events arrive as they happen: `started`, `stdout`, `stderr`, `display`, "
                "`tool_call`, `tool_result`, then `finished` (or `error`). Hanging up ends the program.",
                {"application/json": {"schema": _ref("ExecuteBody"), "example": execute_example}},
            )
        },
        "/v1/batch": {
            "post": _operation(
                "batch",
                "Run many programs, or one against many cases.",
                {**_json(_ref("Results")), **_streams()},
                _WITH_BODY,
                "Either `executions`, or `code` with `cases`. Verdicts of cases: `passed`, `wrong_answer`, a status "
                "word, `skipped` (never started), `not_run` or `not_kept` (`error` says why). With `Accept: "
                "application/x-ndjson` each answer arrives as `result` with its `index` when it is there, and at the "
                "end `finished`.",
                {"application/json": {"schema": _ref("BatchBody"), "example": batch_example}},
            )
        },
        **SESSION_PATHS,
        "/v1/languages": {
            "get": _operation("languages", "The languages offered.", _json(_ref("Languages")), _WITH_KEY)
        },
        "/v1/environments": {
            "get": _operation(
                "environments", "The guest environments and their packages.", _json(_ref("Environments")), _WITH_KEY
            )
        },
        "/v1/info": {"get": _operation("info", "Version, walls and limits.", _json(_ref("Info")), _WITH_KEY)},
        "/health": {"get": _operation("health", "Whether a program can be run now.", _json(_ref("Health")), _ALWAYS)},
        "/metrics": {
            "get": _operation("metrics", "Numbers for Prometheus.", {"text/plain": {"schema": _STRING}}, _WITH_KEY)
        },
        "/": {
            "get": _operation(
                "home",
                "A page to try programs on; JSON for those who do not ask for HTML.",
                {**_json(_ref("Home")), "text/html": {"schema": _STRING}},
                _ALWAYS,
            )
        },
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Belljar",
            "version": __version__,
            "description": "Runs code nobody trusts. Unknown fields are refused, so that a typo never loses a limit.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "security": [{}, {"bearer": []}, {"header": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
            },
            "responses": {
                str(status): {
                    "description": meaning,
                    "content": _json(_ref("Error")),
                    **({"headers": {"Retry-After": {"schema": _INTEGER}}} if status in (429, 503) else {}),
                }
                for status, meaning in _ERRORS.items()
            },
            "schemas": schemas,
        },
    }


_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; }
body { margin: 0 auto; max-width: 60rem; padding: 1.5rem 1rem 4rem; font: 16px/1.55 system-ui, sans-serif; }
h1 { font-size: 1.5rem } h2 { font: 600 1.05rem ui-monospace, monospace; margin: 2.5rem 0 .5rem;
border-top: 1px solid var(--line); padding-top: 1rem } a { color: inherit }
table { border-collapse: collapse; width: 100%; font-size: .9rem; margin: .6rem 0 }
td, th { border-bottom: 1px solid var(--line); padding: .3rem .6rem .3rem 0; text-align: left; vertical-align: top }
code, pre { font: 13px/1.5 ui-monospace, monospace; background: var(--soft); border-radius: 4px; padding: .1rem .3rem }
pre { padding: .8rem; overflow: auto }
"""


def _build_docs(schema: Mapping[str, Any]) -> str:
    pieces = [
        f"<!doctype html><html lang=en><meta charset=utf-8><title>Belljar API</title><style>{_STYLE}</style>",
        '<meta name=viewport content="width=device-width, initial-scale=1"><link rel=icon href="data:,">',
        f"<h1>Belljar API {html.escape(schema['info']['version'])}</h1>",
        f"<p>{html.escape(schema['info']['description'])} ",
        'The same for machines: <a href="/openapi.json">/openapi.json</a>. A page to try it: <a href="/">/</a>.</p>',
        "<p>If the server asks for a key: <code>Authorization: Bearer KEY</code> or <code>X-API-Key: KEY</code>.</p>",
    ]
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            pieces.append(f"<h2>{method.upper()} {html.escape(path)}</h2><p>{html.escape(operation['summary'])}</p>")
            pieces.append(f"<p>{_marked(operation.get('description', ''))}</p>")
            content = operation.get("requestBody", {}).get("content", {})
            if "application/json" in content:
                pieces.append(_describe_body(schema, content["application/json"]))
            statuses = " ".join(f"<code>{status}</code>" for status in operation["responses"])
            pieces.append(f"<p>Answers: {statuses}</p>")
    rows = "".join(f"<tr><td><code>{status}</code><td>{_marked(meaning)}" for status, meaning in _ERRORS.items())
    pieces.append(
        f'<h2>Errors</h2><pre>{{"error": {{"code": "…", "message": "…", "details": {{}}}}}}</pre><table>{rows}</table>'
    )
    return "".join(pieces)


def _describe_body(schema: Mapping[str, Any], content: Mapping[str, Any]) -> str:
    name = content["schema"]["$ref"].rpartition("/")[2]
    body = schema["components"]["schemas"][name]
    required = body.get("required", [])
    rows = "".join(
        f"<tr><td><code>{field}</code><td>{_type_in_words(each)}<td>{'required' if field in required else ''}"
        for field, each in body["properties"].items()
    )
    example = html.escape(json.dumps(content["example"], indent=2))
    return f"<table><tr><th>field<th>type<th>{rows}</table><pre>{example}</pre>"


def _type_in_words(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        return html.escape(schema["$ref"].rpartition("/")[2].removesuffix("Body"))
    if "anyOf" in schema:
        return " or ".join(_type_in_words(each) for each in schema["anyOf"])
    if "enum" in schema:
        return " or ".join(f"<code>{html.escape(json.dumps(each))}</code>" for each in schema["enum"])
    kinds = schema.get("type", "any")
    if kinds == "array":
        return f"list of {_type_in_words(schema['items'])}"
    return html.escape(" or ".join(kinds) if isinstance(kinds, list) else str(kinds))


def _marked(text: str) -> str:
    """Text in which `words like this` are code."""
    pieces = html.escape(text).split("`")
    return "".join(f"<code>{piece}</code>" if number % 2 else piece for number, piece in enumerate(pieces))


SCHEMA = _build_schema()
SCHEMA_JSON = msgspec.json.encode(SCHEMA)
DOCS_HTML = _build_docs(SCHEMA).encode()
