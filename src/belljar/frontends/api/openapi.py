"""The API described for machines (/openapi.json) and for people (/docs), from one source.

The schemas of requests are generated from the types that decode them, those of answers from `contract/answers.py`.
The document is the same for every installation, so it discloses nothing about this one.
"""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from typing import Any

import msgspec

from belljar import __version__
from belljar.contract import answers
from belljar.frontends.api.bodies import BatchBody, BranchBody, CellBody, ExecuteBody, SessionBody

_TYPES = (
    *(ExecuteBody, BatchBody, SessionBody, CellBody, BranchBody),
    *(answers.Outcome, answers.CellOutcome, answers.Results, answers.JudgedOutcome, answers.NotRun, answers.Event),
    *(answers.Error, answers.Session, answers.Sessions, answers.Interrupted, answers.WorkFiles),
    *(answers.Languages, answers.Environments, answers.Info, answers.Health, answers.Home),
)
_REF = "#/components/schemas/{name}"
_STRING = {"type": "string"}
_STREAMS = {kind: {"schema": _STRING} for kind in ("application/x-ndjson", "text/event-stream")}
_RAW: Mapping[str, Any] = {"application/octet-stream": {"schema": {}}}

_ALWAYS = (400, 403, 405, 503)
_WITH_KEY = (*_ALWAYS, 401)
_WITH_BODY = (*_WITH_KEY, 413, 422, 429)

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


def _build_schemas() -> dict[str, Any]:
    _, schemas = msgspec.json.schema_components(_TYPES, ref_template=_REF)
    schemas["BatchBody"]["oneOf"] = [{"required": ["executions"]}, {"required": ["code", "cases"]}]
    schemas["Result"]["anyOf"] = [{"$ref": _REF.format(name=name)} for name in ("JudgedOutcome", "NotRun")]
    for schema in schemas.values():
        for name, each in schema.get("properties", {}).items():
            if name.endswith("_at"):
                each["format"] = "date-time"
    return schemas


def _json(name: str, example: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A JSON body of the schema with that name."""
    schema: dict[str, Any] = {"schema": {"$ref": _REF.format(name=name)}}
    return {"application/json": schema if example is None else {**schema, "example": dict(example)}}


def _operation(
    name: str,
    summary: str,
    content: Mapping[str, Any],
    errors: tuple[int, ...],
    description: str = "",
    body: Mapping[str, Any] | None = None,
    *,
    status: int = 200,
    needs_body: bool = True,
) -> dict[str, Any]:
    """One method of a path."""
    good = {"description": summary, "content": dict(content)} if content else {"description": summary}
    responses: dict[str, Any] = {str(status): good}
    for each in sorted(errors):
        responses[str(each)] = {"$ref": f"#/components/responses/{each}"}
    made: dict[str, Any] = {"operationId": name, "summary": summary, "responses": responses}
    if description:
        made["description"] = description
    if 401 not in errors:
        made["security"] = []
    if body is not None:
        made["requestBody"] = {"required": needs_body, "content": dict(body)}
    return made


def _parameter(name: str, meaning: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "description": meaning, "schema": {**_STRING, "minLength": 1}}


def _at(parameters: list[dict[str, Any]], **methods: dict[str, Any]) -> dict[str, Any]:
    return {method: {**described, "parameters": parameters} for method, described in methods.items()}


_ID = [_parameter("id", "of a session that this key opened")]
_FILE = [*_ID, _parameter("path", "in the work directory; may have several segments")]

_SESSION_PATHS: Mapping[str, Any] = {
    "/v1/sessions": {
        "get": _operation("sessions", "The sessions of this key.", _json("Sessions"), _WITH_KEY),
        "post": _operation(
            "open_session",
            "Open a session: an interpreter that stays.",
            _json("Session"),
            (*_WITH_BODY, 409),
            "Memory, disk and processes in `limits` are for the session's whole life, times for each cell. Unused for "
            "`idle_seconds`, it is closed.",
            _json("SessionBody", {"language": "python", "idle_seconds": 300}),
            status=201,
            needs_body=False,
        ),
    },
    "/v1/sessions/{id}": _at(
        _ID,
        get=_operation("session", "One session.", _json("Session"), (*_WITH_KEY, 404)),
        delete=_operation("close_session", "End a session and all it started.", {}, (*_WITH_KEY, 404), status=204),
    ),
    "/v1/sessions/{id}/execute": _at(
        _ID,
        post=_operation(
            "run_cell",
            "Run one cell.",
            {**_json("CellOutcome"), **_STREAMS},
            (*_WITH_BODY, 404, 409),
            "The answer and the streams are those of `/v1/execute`, with the number of the cell. The value of the last "
            "expression is a display `text/plain`. One cell runs at a time: another waits, or with `wait` false is "
            "answered 409. Hanging up interrupts the cell; the session lives on.",
            _json("CellBody", {"code": "x = 41\nx + 1", "timeout": 5}),
        ),
    ),
    "/v1/sessions/{id}/branch": _at(
        _ID,
        post=_operation(
            "branch_session",
            "Copy the live state into new sessions.",
            _json("Sessions"),
            (*_WITH_BODY, 404, 409),
            "Each has its own processes and its own copy of the files. With `reseed` false the random generators go on "
            "alike in all of them.",
            _json("BranchBody", {"count": 4}),
            needs_body=False,
        ),
    ),
    "/v1/sessions/{id}/interrupt": _at(
        _ID,
        post=_operation(
            "interrupt_session",
            "KeyboardInterrupt in the cell that runs; the state survives.",
            _json("Interrupted"),
            (*_WITH_KEY, 404),
        ),
    ),
    "/v1/sessions/{id}/files": _at(
        _ID,
        get=_operation("files", "The files of the work directory.", _json("WorkFiles"), (*_WITH_KEY, 404, 429)),
    ),
    "/v1/sessions/{id}/files/{path}": _at(
        _FILE,
        get=_operation("read_file", "A file, as it is.", _RAW, (*_WITH_KEY, 404, 413, 422, 429)),
        put=_operation(
            "write_file",
            "Make or replace a file; the body is its content.",
            {},
            (*_WITH_KEY, 404, 413, 422, 429),
            body=_RAW,
            status=204,
        ),
        delete=_operation("delete_file", "Delete a file.", {}, (*_WITH_KEY, 404, 422, 429), status=204),
    ),
}


def _build_schema() -> dict[str, Any]:
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
                {**_json("Outcome"), **_STREAMS},
                _WITH_BODY,
                "A program that fails is 200 with a status word. With `Accept: application/x-ndjson` or "
                "`text/event-stream` events arrive as they happen: `started`, `stdout`, `stderr`, `display`, "
                "`tool_call`, `tool_result`, then `finished` (or `error`). Hanging up ends the program.",
                _json("ExecuteBody", execute_example),
            )
        },
        "/v1/batch": {
            "post": _operation(
                "batch",
                "Run many programs, or one against many cases.",
                {**_json("Results"), **_STREAMS},
                _WITH_BODY,
                "Either `executions`, or `code` with `cases`. Verdicts of cases: `passed`, `wrong_answer`, a status "
                "word, `skipped` (never started), `not_run` or `not_kept` (`error` says why). With `Accept: "
                "application/x-ndjson` each answer arrives as `result` with its `index` once it is known, and "
                "`finished` at the end.",
                _json("BatchBody", batch_example),
            )
        },
        **_SESSION_PATHS,
        "/v1/languages": {"get": _operation("languages", "The languages offered.", _json("Languages"), _WITH_KEY)},
        "/v1/environments": {
            "get": _operation(
                "environments", "The guest environments and their packages.", _json("Environments"), _WITH_KEY
            )
        },
        "/v1/info": {"get": _operation("info", "Version, isolation layers and limits.", _json("Info"), _WITH_KEY)},
        "/health": {"get": _operation("health", "Whether a program can be run now.", _json("Health"), _ALWAYS)},
        "/metrics": {
            "get": _operation("metrics", "Numbers for Prometheus.", {"text/plain": {"schema": _STRING}}, _WITH_KEY)
        },
        "/": {
            "get": _operation(
                "home",
                "A page to try programs on; JSON unless the client accepts HTML.",
                {**_json("Home"), "text/html": {"schema": _STRING}},
                _ALWAYS,
            )
        },
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Belljar",
            "version": __version__,
            "description": "Runs untrusted code. Unknown fields are refused, so that a typo never loses a limit.",
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
                    "content": _json("Error"),
                    **({"headers": {"Retry-After": {"schema": {"type": "integer"}}}} if status in (429, 503) else {}),
                }
                for status, meaning in _ERRORS.items()
            },
            "schemas": _build_schemas(),
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
