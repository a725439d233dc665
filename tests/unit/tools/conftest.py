"""Sandboxes whose programs may call functions of the tests."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import pytest

import belljar
from belljar.settings import Settings, ToolSettings

#: Limits low enough for a test to reach. Times are generous for a busy machine; tests lower them.
BOUNDS = ToolSettings(
    calls_max=1500, call_seconds=30.0, total_seconds=600.0, argument_bytes=1_000_000, result_bytes=4_000_000
)


@pytest.fixture(scope="session")
def tool_box(settings: Settings) -> Iterator[belljar.Sandbox]:
    """An open sandbox with the limits above."""
    pool = dataclasses.replace(settings.pool, jail_seconds=0.2)  # otherwise spare jails are kept for a while
    with belljar.Sandbox(settings=dataclasses.replace(settings, tools=BOUNDS, pool=pool)) as opened:
        yield opened


@pytest.fixture
def bounded_box(settings: Settings) -> Iterator[Callable[..., belljar.Sandbox]]:
    """Open sandboxes with other limits."""
    opened: list[belljar.Sandbox] = []

    def open_one(**bounds: object) -> belljar.Sandbox:
        tools = dataclasses.replace(BOUNDS, **bounds)  # type: ignore[arg-type]
        pool = dataclasses.replace(settings.pool, ready_guests=1)
        opened.append(belljar.Sandbox(settings=dataclasses.replace(settings, tools=tools, pool=pool)).open())
        return opened[-1]

    try:
        yield open_one
    finally:
        for box in opened:
            box.close()
