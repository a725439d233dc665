"""What a search engine is asked."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One search."""

    query: str
    top_k: int
    region: str
    lang: str
    api_key: str = ""  # the asker's own, where the engine takes one
