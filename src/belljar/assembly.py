"""Build an engine from settings. This is the only module that imports every layer."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from belljar.backends.local import LocalSandbox, check_walls
from belljar.contract.errors import SandboxFault
from belljar.engine.engine import Engine
from belljar.environments import Environments
from belljar.settings import Settings
from belljar.tools.broker import Broker
from belljar.tools.source import Source


def build_engine(
    settings: Settings,
    progress: Callable[[str], None] | None = None,
    first_language: str = "python",
    runners: int = 0,
) -> Engine:
    """Return an engine that is not open yet.

    `progress` is called with messages about slow set-up, such as building an environment. `first_language` is warm when
    the engine is open. With `runners` > 0, that many worker processes share the one-shot runs.
    """
    environments = Environments(settings.state_dir, settings.environments)
    notify = progress or logging.getLogger("belljar").info
    tools = build_tools(settings)
    if settings.backend == "container":
        from belljar.backends.container.sandbox import ContainerSandbox  # imported here, because few servers need it

        return Engine(ContainerSandbox(settings, environments, notify, tools), settings, tools)
    if not runners:
        return Engine(LocalSandbox(settings, environments, notify, tools, first_language), settings, tools)
    from belljar.backends.runners import RunnersSandbox  # imported here, because only servers need it

    own = LocalSandbox(settings, environments, notify, tools, "")
    return Engine(RunnersSandbox(settings, environments, notify, own, runners), settings, tools)


def build_tools(settings: Settings) -> Broker:
    """Return the broker that answers the tool calls of programs."""
    tools = settings.tools
    sources: list[Source] = []
    if tools.builtin:
        from belljar.tools.web.access import Web  # imported here, because few servers need it
        from belljar.tools.web.builtin import BuiltIn

        sources.append(
            BuiltIn(Web(settings.web, settings.llm, settings.jail.uid_base), tools.builtin, settings.llm.use_model)
        )
    if tools.servers:
        from belljar.tools.mcp_server import McpServer  # imported here, because few servers need it

        sources += [McpServer(name, each, tools.start_seconds) for name, each in tools.servers.items()]
    return Broker(tools, sources)


def probe_machine(settings: Settings) -> dict[str, Any]:
    """Return what `jail/probe` finds out about the walls and the kernel of this machine.

    Raises:
        SandboxFault: the probe failed.
    """
    from belljar.jail import probe  # imported here, because only the doctor needs it

    try:
        found = probe.run(settings.jail.uid_base, settings.jail.cgroup_parent)
    except probe.ProbeFailed as error:
        raise SandboxFault(f"the isolation layers of this machine could not be probed: {error}") from error
    if settings.backend == "container":
        from belljar.backends.container import walls

        found["walls"] = walls.in_containers(found["walls"], settings)
    return found


def descriptors_needed(settings: Settings) -> int:
    """Return the lowest hard limit of open files with which the sandbox starts."""
    from belljar.backends.local.pool import descriptors

    return descriptors.needed(settings.pool)


def prepare_environment(settings: Settings, name: str, progress: Callable[[str], None]) -> None:
    """Build environment `name` if it does not exist yet.

    Building takes minutes, so the walls are checked first: without them no program could run in it.

    Raises:
        UnknownEnvironment, EnvironmentBroken: it is not defined, or it cannot be built.
        WallMissing: a wall is not available and the operator did not opt out of it.
    """
    environments = build_environments(settings)
    if settings.backend == "local" and environments.find(name) is None:
        check_walls(settings)
    environments.ensure(name, progress)


def build_environments(settings: Settings) -> Environments:
    return Environments(settings.state_dir, settings.environments)
