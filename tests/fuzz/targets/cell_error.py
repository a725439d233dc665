"""What a guest says that its cell raised, in Python sessions and those of other languages."""

from __future__ import annotations

from belljar import channel
from belljar.backends.local.run.displays import read_error

ALLOWED = (channel.ChannelClosed,)
TOKENS = (b'"error"', b'"type"', b'"message"', b'"traceback"', b"null", b'"\\ud800"', b"[", b"]")


def run(data: bytes) -> None:
    message, _ = channel.parse(len(data).to_bytes(4, "big") + data)
    error = read_error(message.get("error"))
    if error is not None:
        assert len("".join((error.type, error.message, *error.traceback))) < 64 * 1024
        "".join((error.type, error.message, *error.traceback)).encode()
