"""What an image says of itself, and what a container lists of its files."""

from __future__ import annotations

import json

from belljar.backends.container.container import checked
from belljar.backends.gvisor.guest import _check_entries
from belljar.contract.errors import EnvironmentBroken, SandboxFault, UnsafePath

ALLOWED = (EnvironmentBroken, SandboxFault, UnsafePath)
TOKENS = (
    b'"shown":["/usr"]',
    b'"path":"/bin"',
    b'"version":"3.12.1"',
    b'"python":"/x"',
    b'"warm":["a.b"]',
    b'"found":',
)


def run(data: bytes) -> None:
    try:
        said = json.loads(data)
    except (ValueError, RecursionError):
        return
    if not isinstance(said, dict):
        return
    for entry in _check_entries(said.get("found")):
        assert not entry.path.startswith("/")
        assert ".." not in entry.path.split("/")
    contents = checked("image", said)
    assert ".." not in contents.python + contents.prefix
    assert len(contents.shown) <= 64
    contents.environ()
