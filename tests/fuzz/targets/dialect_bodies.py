"""The bodies of the servers that we stand in for."""

from __future__ import annotations

import msgspec

from belljar.frontends.api.dialects import api_proxy, code_exec, fastapi, kernel_sessions, kernels, multipl_e, xmaster
from belljar.frontends.api.dialects import xmaster_programs as programs
from belljar.frontends.api.replies import Refusal
from belljar.frontends.kernel_words import id_of, name_of

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
    *(api_proxy.SearchBody, api_proxy.UrlBody, kernel_sessions.UploadBody, kernel_sessions.SessionBody),
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
