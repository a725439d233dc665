"""The rows of the tables that `belljar doctor` prints."""

from __future__ import annotations

from dataclasses import dataclass

OK, MISSING, GIVEN_UP, NOTE = "ok", "missing", "given up", "note"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    name: str
    state: str
    seen: str
    meaning: str = ""
    fix: str = ""
