"""What the doctor's tables are made of."""

from __future__ import annotations

from dataclasses import dataclass

OK, MISSING, GIVEN_UP, NOTE = "ok", "missing", "given up", "note"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of one of the doctor's tables."""

    name: str
    state: str
    seen: str
    meaning: str = ""
    fix: str = ""
