"""Paths of files, in requests and out of programs."""

from __future__ import annotations

import posixpath
from types import SimpleNamespace

from belljar.contract.errors import UnsafePath
from belljar.contract.files import check_relative_path
from belljar.frontends.api.sessions import read_path

ALLOWED = (UnsafePath,)
TOKENS = (b"../", b"./", b"//", b"%2e%2e%2f", b"%00", b"%ff", b"\\", b"/files/", b"\xed\xa0\x80")


def run(data: bytes) -> None:
    for path in (_from_request, _from_text):
        try:
            checked = path(data)
        except UnsafePath as error:
            error.message.encode()
            continue
        assert posixpath.normpath(posixpath.join("/work", checked)) == f"/work/{checked}"
        assert "\0" not in checked


def _from_request(data: bytes) -> str:
    return read_path(SimpleNamespace(scope={"raw_path": b"/v1/sessions/a/files/" + data}))  # type: ignore[arg-type]


def _from_text(data: bytes) -> str:
    return check_relative_path(data.decode("utf-8", "surrogateescape"))
