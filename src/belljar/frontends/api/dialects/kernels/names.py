"""Session names and error messages of the kernel server, shared by its HTTP API and its MCP tools."""

from __future__ import annotations

import re

from belljar.contract.execution import MIB, Limits, Outcome, Status
from belljar.frontends.access.refusals import Refusal

_PLAIN = re.compile(rb"[A-Za-z0-9._-]")
_ODD_START = "0~~"  # before a name that does not start with a letter or digit; no escape looks like this


def id_of(name: str | None) -> str:
    """The session id for the name that a client chose, which may be any text; empty for no name.

    Raises:
        Refusal: the name is too long.
    """
    if not name:
        return ""
    kept = (chr(byte) if _PLAIN.match(bytes([byte])) else f"~{byte:02X}" for byte in name.encode("utf-8", "replace"))
    text = "".join(kept)
    if not text[0].isalnum():
        text = _ODD_START + text
    if len(text) > 128:
        raise Refusal(422, "invalid_request", "session_id is too long; use up to 128 plain letters and digits")
    return text


def name_of(session_id: str) -> str:
    """The name from which `id_of` made an id; other ids are returned as they are."""
    text = session_id.removeprefix(_ODD_START)
    pieces = re.split(r"~([0-9A-F]{2})", text)
    content = b"".join(
        bytes([int(piece, 16)]) if at % 2 else piece.encode("utf-8", "replace") for at, piece in enumerate(pieces)
    )
    return content.decode("utf-8", "replace")


def error_of(outcome: Outcome, limits: Limits) -> str | None:
    """`Type: message`; None if the cell succeeded."""
    has_ended = outcome.error is not None and outcome.error.type == "SessionEnded"
    if outcome.status is Status.TIMED_OUT:
        after = "the session has ended; the next call starts a new one" if has_ended else "the session goes on"
        return f"TimeoutError: not done after {limits.wall_seconds:g} s, and interrupted; {after}"
    if outcome.status is Status.OUT_OF_MEMORY:
        return (
            f"MemoryError: more than the session's {limits.memory_bytes / MIB:g} MB were needed; it has ended, and the "
            "next call starts a new one"
        )
    if outcome.error is not None:
        return f"{outcome.error.type}: {outcome.error.message}" if outcome.error.message else outcome.error.type
    return None if outcome.ok else f"RuntimeError: the cell ended as {outcome.status}"
