"""The wiring: settings in, a working engine out. The only file that knows everyone."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from belljar.backends.local import LocalSandbox
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
    """Return an engine that is not open yet; `progress` hears about slow set-up, such as building an environment.

    `first_language` is what will be warm once it is open. So many `runners` do what one process need not.
    """
    environments = Environments(settings.state_dir, settings.environments)
    tell = progress or logging.getLogger("belljar").info
    tools = build_tools(settings)
    if settings.backend == "container":
        from belljar.backends.container import ContainerSandbox  # few servers need it

        return Engine(ContainerSandbox(settings, environments, tell, tools), settings, tools)
    if not runners:
        return Engine(LocalSandbox(settings, environments, tell, tools, first_language), settings, tools)
    from belljar.backends.runners import RunnersSandbox  # nor these anybody but servers

    own = LocalSandbox(settings, environments, tell, tools, "")
    return Engine(RunnersSandbox(settings, environments, tell, own, runners), settings, tools)


def build_tools(settings: Settings) -> Broker:
    """Who answers the tool calls of programs."""
    tools = settings.tools
    sources: list[Source] = []
    if tools.builtin:
        from belljar.tools.web.access import Web  # few servers need it
        from belljar.tools.web.builtin import BuiltIn

        sources.append(
            BuiltIn(Web(settings.web, settings.llm, settings.jail.uid_base), tools.builtin, settings.llm.use_model)
        )
    if tools.servers:
        from belljar.tools.mcp_server import McpServer  # nor this

        sources += [McpServer(name, each, tools.start_seconds) for name, each in tools.servers.items()]
    return Broker(tools, sources)


def probe_machine(settings: Settings) -> dict[str, Any]:
    """What `jail/probe.py` finds out about the walls and the kernel here; nothing of it stays up.

    Raises:
        SandboxFault: the probe gave no answer.
    """
    from belljar.jail import probe  # only the doctor asks; every other start should not wait for it

    try:
        found = probe.ask(settings.jail.uid_base, settings.jail.cgroup_parent)
    except probe.ProbeFailed as error:
        raise SandboxFault(f"the walls of this machine could not be probed: {error}") from error
    if settings.backend == "container":
        from belljar.backends.container import walls

        found["walls"] = walls.in_containers(found["walls"], settings)
    return found


def descriptors_needed(settings: Settings) -> int:
    """The lowest hard limit of open files with which the sandbox starts."""
    from belljar.backends.local.pool import descriptors

    return descriptors.needed(settings.pool)


def prepare_environment(settings: Settings, name: str, tell: Callable[[str], None]) -> None:
    """Build an environment that is not there yet, unless no program could run in it here: that takes minutes.

    Raises:
        UnknownEnvironment, EnvironmentBroken: there is none, or it cannot be built.
        WallMissing: a wall cannot be had and was not given up.
    """
    environments = build_environments(settings)
    if settings.backend == "local" and environments.find(name) is None:
        LocalSandbox(settings, environments, tell).check_walls()
    environments.ensure(name, tell)


def build_environments(settings: Settings) -> Environments:
    """The guest environments of this installation."""
    return Environments(settings.state_dir, settings.environments)
