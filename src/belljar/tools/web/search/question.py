"""The parameters of a search."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    query: str
    top_k: int
    region: str
    lang: str
    api_key: str = ""  # the caller's own, if the engine takes one
