"""Sandboxes for the language tests, with a small environment and a separate state directory."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import belljar
from belljar.settings import EnvironmentSettings, LanguageSettings, Settings

OwnSettings = Callable[..., Settings]


@pytest.fixture(scope="session")
def bare_settings(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """Settings without npm or pip packages, with an empty compile cache and only the standard library for Python."""
    return dataclasses.replace(
        settings,
        state_dir=tmp_path_factory.mktemp("languages-state"),
        environments={"default": EnvironmentSettings(packages=(), warm_imports=())},
    )


@pytest.fixture
def own_settings(bare_settings: Settings) -> OwnSettings:
    """Make settings with an empty compile cache; keywords are settings of `[languages]`."""

    def made(**languages: Any) -> Settings:
        shutil.rmtree(compiled_dir(bare_settings), ignore_errors=True)
        return dataclasses.replace(bare_settings, languages=LanguageSettings(**languages))

    return made


def compiled_dir(settings: Settings) -> Path:
    """Where compiled programs are kept."""
    return settings.state_dir / "compiled"


@pytest.fixture(scope="module")
def bare_box(bare_settings: Settings) -> Iterator[belljar.Sandbox]:
    """An open sandbox with these settings."""
    with belljar.Sandbox(settings=bare_settings) as opened:
        yield opened
