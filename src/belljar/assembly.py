"""The wiring: settings in, a working engine out. The only file that knows everyone."""

from __future__ import annotations

import logging
from collections.abc import Callable

from belljar.backends.local import LocalSandbox
from belljar.engine.execute import Engine
from belljar.environments import Environments
from belljar.settings import Settings


def build_engine(settings: Settings, progress: Callable[[str], None] | None = None) -> Engine:
    """Return an engine that is not open yet; `progress` hears about slow set-up, such as building an environment."""
    environments = Environments(settings.state_dir, settings.environments)
    tell = progress or logging.getLogger("belljar").info
    return Engine(LocalSandbox(settings, environments, tell), settings)
