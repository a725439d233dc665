"""Finds the route for a path: an exact look-up first, then patterns such as /v1/sessions/{id}/files/{path*}."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from belljar.frontends.access.refusals import Refusal
from belljar.frontends.api.context import Service
from belljar.frontends.api.request import Request

Route = Callable[[Service, Request], Awaitable[None]]
Methods = Mapping[str, Route]


class Answer(NamedTuple):
    """A refusal as it is sent."""

    body: bytes
    content_type: bytes = b"application/json"
    status: int = 0  # 0: that of the refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """The wire behaviour of another system: its routes, and the form of its errors."""

    name: str  # as in --listen NAME:PORT
    title: str
    port: int  # that the system's clients use by default
    routes: Mapping[str, Methods]
    refuse: Callable[[Refusal], Answer]
    open_to_all: frozenset[str] = frozenset()  # paths that need no key


@dataclass(frozen=True, slots=True)
class Match:
    """The routes at a path, by method."""

    methods: Methods
    is_open: bool
    dialect: Dialect | None  # None: the native API


class RouteTable:
    """All paths with their routes. If a path is added twice, the first one counts."""

    def __init__(self) -> None:
        self._exact: dict[str, Match] = {}
        self._patterns: list[tuple[tuple[str, ...], Match]] = []

    def add(self, routes: Mapping[str, Methods], open_to_all: frozenset[str], dialect: Dialect | None = None) -> None:
        """Add routes. `{name}` in a path matches one segment, `{name*}` at its end all that follow."""
        for path, methods in routes.items():
            match = Match(methods, path in open_to_all, dialect)
            if "{" not in path:
                self._exact.setdefault(path, match)
            else:
                self._patterns.append((tuple(path.split("/")), match))

    def find(self, path: str) -> tuple[Match, Mapping[str, str]] | None:
        """The match for `path`, with the segments that a pattern captured."""
        match = self._exact.get(path)
        if match is not None:
            return match, {}
        segments = path.split("/")
        for pattern, candidate in self._patterns:
            found = _match(pattern, segments)
            if found is not None:
                return candidate, found
        return None


def _match(pattern: tuple[str, ...], segments: list[str]) -> dict[str, str] | None:
    takes_rest = pattern[-1].endswith("*}")
    if len(segments) != len(pattern) and not (takes_rest and len(segments) > len(pattern)):
        return None
    found: dict[str, str] = {}
    for at, wanted in enumerate(pattern):
        if wanted.endswith("*}"):
            found[wanted[1:-2]] = "/".join(segments[at:])
        elif wanted.startswith("{"):
            found[wanted[1:-1]] = segments[at]
        elif wanted != segments[at]:
            return None
    return found if all(found.values()) else None
