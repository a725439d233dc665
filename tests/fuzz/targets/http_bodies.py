"""The bodies of every route, and what admission makes of them."""

from __future__ import annotations

from belljar.contract.errors import CallerError
from belljar.frontends.access.callers import Caller
from belljar.frontends.access.refusals import Refusal
from belljar.frontends.api import bodies
from belljar.settings import Settings

ALLOWED = ()
_FIELDS = (*bodies.BatchBody.__struct_fields__, *bodies.SessionBody.__struct_fields__)
TOKENS = (
    *(f'"{name}":'.encode() for name in sorted(set(_FIELDS))),
    *(b'{"code":"1"}', b'"\\ud800"', b"1e999", b" - at `$.files`", b"null", b"base64"),
)
_CALLER = Caller("fuzz", Settings())
_READERS = (
    (bodies.read_execute, lambda body: bodies.admit_body(_CALLER, body)),
    (bodies.read_batch, lambda body: [bodies.admit_body(_CALLER, each) for each in body.executions or ()]),
    (bodies.read_session, lambda body: bodies.admit_session_body(_CALLER, body)),
    (bodies.read_cell, lambda body: body),
    (bodies.read_branch, lambda body: body),
)


def run(data: bytes) -> None:
    for read, admit in _READERS:
        try:
            admit(read(data))
        except Refusal as refusal:
            assert refusal.status in (400, 422)
            str(refusal.as_json()).encode()
        except CallerError as error:
            str(error.as_json() if hasattr(error, "as_json") else error.message).encode()
