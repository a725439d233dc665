"""All settings, in one frozen tree that is read once.

Later sources win: the defaults in `model.py`, a TOML file, `BELLJAR_…` variables, flags. `provenance` records the
source of each value. Nothing else in Belljar reads the environment or a configuration file.

A value's name is its path: `pool.max_running` is `[pool] max_running = 8` in the file and
`BELLJAR_POOL_MAX_RUNNING=8` in the environment.
"""

from belljar.settings.load import familiar_names, load, names
from belljar.settings.model import (
    WALL_NAMES,
    ContainerSettings,
    EnvironmentSettings,
    JailSettings,
    LanguageSettings,
    LlmSettings,
    McpSettings,
    ModelSettings,
    NetworkSettings,
    PoolSettings,
    RequestSettings,
    ServerSettings,
    SessionSettings,
    Settings,
    ToolServerSettings,
    ToolSettings,
    WebSettings,
)
from belljar.settings.validate import check_environment_name

__all__ = [
    "WALL_NAMES",
    "ContainerSettings",
    "EnvironmentSettings",
    "JailSettings",
    "LanguageSettings",
    "LlmSettings",
    "McpSettings",
    "ModelSettings",
    "NetworkSettings",
    "PoolSettings",
    "RequestSettings",
    "ServerSettings",
    "SessionSettings",
    "Settings",
    "ToolServerSettings",
    "ToolSettings",
    "WebSettings",
    "check_environment_name",
    "familiar_names",
    "load",
    "names",
]
