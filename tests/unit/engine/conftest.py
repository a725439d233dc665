"""A real engine for every test that runs programs."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from belljar.assembly import build_engine
from belljar.engine.engine import Engine
from belljar.settings import EnvironmentSettings, Settings, load

OpenEngine = Callable[..., AbstractAsyncContextManager[Engine]]


@pytest.fixture(scope="session")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """Real settings with an environment that builds quickly: only the standard library."""
    base = tmp_path_factory.getbasetemp()
    return dataclasses.replace(
        load(environ={}),
        state_dir=base / "bare-state",
        runtime_dir=base / "bare-run",
        environments={"default": EnvironmentSettings(packages=(), warm_imports=())},
    )


@pytest.fixture
def open_engine(settings: Settings) -> OpenEngine:
    """Give an open engine; keywords change its pool."""

    @contextlib.asynccontextmanager
    async def opened(**pool: Any) -> AsyncIterator[Engine]:
        engine = build_engine(dataclasses.replace(settings, pool=dataclasses.replace(settings.pool, **pool)))
        await engine.open()
        try:
            yield engine
        finally:
            await engine.close(grace_seconds=0.0)

    return opened
