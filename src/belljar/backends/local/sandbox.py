"""The local back end: jails on this machine, one warm pool per environment."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from belljar.backends.local.features.feature import Features
from belljar.backends.local.host import Host
from belljar.backends.local.languages.standby import StandbyPool
from belljar.backends.local.pool import descriptors
from belljar.backends.local.pool.jail_slots import JailSlots
from belljar.backends.local.pool.pool import LocalPool
from belljar.backends.local.pool.view import environment_view
from belljar.backends.pooled import TOOLCHAINS_OF, PooledSandbox, PoolSource
from belljar.contract.tools import ToolHost
from belljar.environments import Environments, ensure_unless_cancelled
from belljar.jail import mounts
from belljar.settings import Settings

if TYPE_CHECKING:
    from belljar.languages.toolchains import InstalledToolchains


class LocalSandbox(PooledSandbox):
    """Runs programs in jails of this machine. Bound to the event loop that opens it."""

    def __init__(
        self,
        settings: Settings,
        environments: Environments,
        progress: Callable[[str], None],
        tools: ToolHost | None = None,
        first_language: str = "python",
    ) -> None:
        """`first_language` is that of the first program, for which a pool is warmed; empty: no pool is."""
        super().__init__(settings, LocalSource(settings, environments, progress, tools, first_language))


class LocalSource(PoolSource):
    """Makes pools on this machine: of an environment, or of one with the toolchains of a root (`default@/root`)."""

    name = "local"
    has_toolchain_pools = True

    def __init__(
        self,
        settings: Settings,
        environments: Environments,
        progress: Callable[[str], None],
        tools: ToolHost | None,
        first_language: str,
    ) -> None:
        self.standbys = self._standbys = StandbyPool(settings)
        self._settings = settings
        self._environments = environments
        self._progress = progress
        self._first_language = first_language
        self._features = Features(settings.tools, tools)
        self._host = Host(settings, has_cgroup=True)
        self._jail_slots: JailSlots | None = None

    async def open(self) -> None:
        """Take what every pool needs of this machine.

        Raises:
            WallMissing: an isolation layer is missing and was not given up.
            SandboxFault: the jail does not work here.
        """
        descriptors.raise_limit(self._settings.pool)
        self._host.open()
        kept = max(1, self._settings.pool.ready_guests)
        self._jail_slots = JailSlots(self._host.cgroups, changes_uid=os.geteuid() == 0, kept=kept)

    def first_pool(self) -> str:
        """That of the first environment, with the toolchain of the first language."""
        if not self._first_language:
            return ""
        environment = first_environment(self._settings)
        if self._first_language == "python":
            return environment
        return environment + TOOLCHAINS_OF + self.toolchains().root_of(self._first_language)

    def toolchains(self) -> InstalledToolchains:
        """Those of this machine."""
        from belljar.languages import installed_toolchains

        return installed_toolchains(self._settings)

    async def make(self, name: str) -> LocalPool:
        """The pool of that name, built first if its environment is not."""
        base, has_toolchains, root = name.partition(TOOLCHAINS_OF)
        environment = await ensure_unless_cancelled(self._environments, base, self._progress)
        shown = await asyncio.to_thread(lambda: self.toolchains().bound_places(root)) if has_toolchains else {}
        own_devices = os.geteuid() == 0 and mounts.can_make_devices()
        assert self._jail_slots is not None
        return LocalPool(
            environment,
            environment_view(environment, shown, root),
            self._host.walls(cgroup=self._host.cgroups is not None, own_devices=own_devices),
            self._jail_slots,
            self._settings,
            self._features,
            self._host.network,
            self.standbys,
        )

    def facts(self) -> Mapping[str, Any]:
        """Numbers for monitoring."""
        return {**self._standbys.facts(), **self._host.facts()}

    async def close(self) -> None:
        """Remove every cgroup and give everything back."""
        if self._jail_slots is not None:
            self._jail_slots.close()
        await self._host.close()


def first_environment(settings: Settings) -> str:
    """The environment of programs whose caller names none."""
    configured = settings.environments
    return "default" if "default" in configured else next(iter(configured), "default")


def check_walls(settings: Settings) -> None:
    """Refuse what opening a local sandbox would refuse for want of an isolation layer; takes milliseconds.

    Raises:
        WallMissing, SandboxFault.
    """
    host = Host(settings, has_cgroup=True)
    try:
        host.open()
    finally:
        host.give_back()
