"""The standard error of a program, out of which its exception is read."""

from __future__ import annotations

from belljar.engine.tracebacks import read_error
from belljar.frontends.api.dialects.kernels.events import _HeldBack
from belljar.frontends.api.dialects.xmaster.wrapping import read_traceback

ALLOWED = ()
TOKENS = (
    b"Traceback (most recent call last):\n",
    b'  File "/work/main.py", line 1, in f\n',
    b"  + Exception Group Traceback (most recent call last):\n",
    b"  | ",
    b"ValueError: x\n",
    b"Exception ignored ",
    b"\x1b[1;35m",
)


def run(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    error = read_error(text)
    if error is not None:
        assert error.type
        assert len(error.message) <= len(text)
    read_traceback(text)
    kept = _HeldBack()
    parts = [kept.take(each) for each in text.splitlines(keepends=True)]
    assert len("".join(parts)) <= len(text)
