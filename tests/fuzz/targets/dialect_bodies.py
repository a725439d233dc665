"""The bodies of the servers that we stand in for."""

from __future__ import annotations

import msgspec

from belljar.frontends.access.refusals import Refusal
from belljar.frontends.api.dialects import fastapi
from belljar.frontends.api.dialects.api_proxy import routes
from belljar.frontends.api.dialects.code_exec import multipl_e
from belljar.frontends.api.dialects.code_exec import routes as code_exec
from belljar.frontends.api.dialects.kernels import routes as kernels
from belljar.frontends.api.dialects.kernels import sessions
from belljar.frontends.api.dialects.kernels.names import id_of, name_of
from belljar.frontends.api.dialects.xmaster import routes as xmaster
from belljar.frontends.api.dialects.xmaster import wrapping as programs

ALLOWED = ()
TOKENS = (
    b'"code":"1"',
    b'"session_id":"a"',
    b'"timeout":1',
    b'"args":{',
    b'"testhash":["a","b"]',
    b'"\\ud800"',
    b"1e999",
)
_KINDS = (
    *(routes.SearchBody, routes.UrlBody, sessions.UploadBody, sessions.SessionBody),
    *(kernels.ExecuteBody, xmaster.ExecuteBody, xmaster.PutBody),
)


def run(data: bytes) -> None:
    for kind in _KINDS:
        try:
            body = fastapi.read_body(kind, data)
            name_of(id_of(getattr(body, "session_id", None)))
            programs.wrap_program(getattr(body, "code", ""), ("web_search",))
        except Refusal as refusal:
            assert refusal.status == 422
            fastapi.refuse(refusal)
    for decode in (code_exec._decode, code_exec._decode_wrapped):
        try:
            decode(data)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            pass
    multipl_e._run_go_tests(data.decode("utf-8", "replace"))
