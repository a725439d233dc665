"""The container back end: the local one, with every pool inside a container of its own.

Everything about runs, limits and evidence is the local back end's. Host and container share a kernel, so descriptors,
pidfds and cgroups reach through the container's walls, and a run in a warm container takes the path of any other run.
"""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import fnmatch
import logging
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

from belljar.backends.container import host_python, launch_config, ownership
from belljar.backends.container.container import Container
from belljar.backends.container.engine_api import EngineApi
from belljar.backends.container.pool import ContainerPool, describe
from belljar.backends.gvisor.pool import GvisorPool
from belljar.backends.local import LocalSandbox
from belljar.backends.local.features.feature import HostFeatures
from belljar.backends.local.pool.pool import LocalPool
from belljar.backends.local.session.session import LocalSession
from belljar.contract.backend import Watcher
from belljar.contract.errors import (
    NotAllowed,
    NotOffered,
    Overloaded,
    UnknownEnvironment,
    WallMissing,
    ZygoteDied,
)
from belljar.contract.execution import Evidence, Execution, Limits
from belljar.contract.sessions import LiveSession, SessionOrder
from belljar.contract.tools import ToolHost
from belljar.environments import Environments
from belljar.jail.cgroups import Cgroups, CgroupsUnavailable, find_hierarchies
from belljar.settings import EnvironmentSettings, Settings

if TYPE_CHECKING:
    from belljar.backends.local.languages.steps import Command, Commands
    from belljar.languages.toolchains import InstalledToolchains

_log = logging.getLogger("belljar.container")
_IMAGE_PREFIX = "image:"
_BLOCKS = 60  # of uids; what one instance has set aside is enough for as many containers


class ContainerSandbox(LocalSandbox):
    """Runs programs in jails within warm containers. Bound to the event loop that opens it."""

    name = "container"

    def __init__(
        self,
        settings: Settings,
        environments: Environments,
        progress: Callable[[str], None],
        tools: ToolHost | None = None,
    ) -> None:
        super().__init__(settings, environments, progress, tools)
        self._container = settings.container
        self._images = dict(each.split("=", 1) for each in settings.container.images)
        self._images.setdefault("default", settings.container.image)
        self._daemon = EngineApi(settings.container)
        self._doors = settings.runtime_dir / "containers"
        self._started = 0
        self._image_ids: dict[str, str] = {}
        self._all: list[ContainerPool] = []
        self._used_at: dict[str, float] = {}

    async def open(self) -> None:
        """Reach the engine, clear up after dead owners, and warm the default image.

        Raises:
            EngineUnavailable: the engine does not answer.
            SandboxFault: no container, or no jail in it, can be had here.
        """
        try:
            await self._daemon.connect()
            await self._sweep()
            self._loan = await asyncio.to_thread(host_python.lend, self._settings.state_dir)
        except BaseException:
            await self.close()
            raise
        await super().open()

    def _first_pool(self) -> str:
        return "default"

    def _open_cgroups(self) -> None:
        """Each container has its own, looked for when it is started."""

    async def _sweep(self) -> None:
        await asyncio.to_thread(ownership.sweep, self._doors)
        for container, marks in await self._daemon.owned(ownership.LABEL):
            if ownership.is_orphan(marks):
                _log.warning("removing container %s, whose owner has died", container[:12])
                await self._daemon.remove(container)

    def _make_commands(self) -> Commands:
        from belljar.backends.local.languages.steps import Commands  # when first needed

        return Commands(self._settings, self._run_patiently, self._machine())

    def _machine(self) -> InstalledToolchains:
        from belljar.backends.container.toolchains import ImageToolchains

        return ImageToolchains(self._settings, self._image_ids)

    async def run(self, execution: Execution, watcher: Watcher | None = None) -> Evidence:
        """Run one program, in the image for its language where the operator has named one."""
        if execution.environment == "default" and execution.language in self._images:
            execution = dataclasses.replace(execution, environment=execution.language)
        return await super().run(execution, watcher)

    async def _run(self, execution: Execution, watcher: Watcher | None, command: Command | None) -> Evidence:
        if self._container.fresh == "run":
            pool = await self._launch(execution.environment, fresh=True)
            try:
                return await self._run_in(pool, execution, watcher, command)
            finally:
                await asyncio.shield(pool.close())
        pool = await self._pools.enter(execution.environment)
        self._used_at[execution.environment] = asyncio.get_running_loop().time()
        return await self._run_in(pool, execution, watcher, command)

    async def _run_in(
        self, pool: LocalPool, execution: Execution, watcher: Watcher | None, command: Command | None
    ) -> Evidence:
        chosen: object = pool
        if command is None and not pool.environment.version:
            raise NotOffered(
                f"the image of environment {execution.environment!r} has no Python (3.9 or newer); name a language "
                "that it has, or another environment",
                field="language",
            )
        if isinstance(chosen, GvisorPool):
            if execution.network:
                raise NotOffered(f"network is not offered under {self._container.runtime}", field="network")
            return await self._run_there(chosen, execution, watcher, command)
        try:
            return await super()._run_in(pool, execution, watcher, command)
        except OSError as error:
            if error.errno != errno.ENODEV:
                raise
            raise ZygoteDied("the container ended, and its cgroups with it") from error

    async def _run_there(
        self, pool: GvisorPool, execution: Execution, watcher: Watcher | None, command: Command | None
    ) -> Evidence:
        """In a container with a kernel of its own."""
        companions = HostFeatures()
        try:
            self._accompany(execution, cast(LocalPool, pool), watcher, companions)
            extras = companions.extras()
            if command is None:
                evidence = await pool.run(execution, watcher, extras)
            else:
                evidence = await pool.run(execution, watcher, [*extras, command.extra], command.source)
            return companions.complete(evidence)
        except ZygoteDied as error:
            companions.forbid_repeating(error)
            raise
        finally:
            companions.close()

    async def _seat(self, pool: LocalPool, order: SessionOrder, allowed: Limits) -> tuple[LocalSession, int]:
        chosen: object = pool
        if not isinstance(chosen, GvisorPool):
            return await super()._seat(pool, order, allowed)
        if order.language != "python":
            raise NotOffered(f"under {self._container.runtime} there are sessions in Python only", field="language")
        if order.network:
            raise NotOffered(f"network is not offered under {self._container.runtime}", field="network")
        return chosen.seat(order.limits, allowed), -1

    async def _open_session(self, order: SessionOrder) -> LiveSession:
        if self._container.fresh == "never":
            return await super()._open_session(order)
        pool = await self._launch(order.environment, fresh=True)
        try:
            session = await self._open_session_in(pool, order)
        except BaseException:
            await asyncio.shield(pool.close())
            raise
        self._pools.leave(pool)  # it goes soon after the last session in it
        return session

    def _maintain(self) -> None:
        self._let_go_of_unused_images()
        super()._maintain()

    def _let_go_of_unused_images(self) -> None:
        """Images that requests have named are not kept warm for ever."""
        now = asyncio.get_running_loop().time()
        for name, pool in list(self._pools.current.items()):
            is_old = now - self._used_at.get(name, now) > self._settings.pool.idle_seconds
            if name not in self._images and pool.is_idle and is_old:
                self._used_at.pop(name, None)
                self._pools.leave(pool)

    async def _make_pool(self, name: str) -> LocalPool:
        return await self._launch(name)

    async def _launch(self, name: str, *, fresh: bool = False) -> LocalPool:
        """A new container of the image that `name` stands for, with a pool in it."""
        image = self._image_of(name)
        if not fresh:
            await self._make_room()
        self._image_ids[image] = str((await self._daemon.image(image)).get("Id", ""))
        assert self._instance is not None
        self._started += 1
        marks = ownership.labels(self._instance.name)
        warm = (*self._settings.environments.get(name, EnvironmentSettings(warm_imports=())).warm_imports, "IPython")
        if launch_config.has_own_kernel(self._container.runtime):
            return await self._launch_foreign(name, image, marks, warm)
        vessel = Container(self._daemon, image, ownership.new_directory(self._doors))
        await vessel.launch(marks, warm, self._container, self._loan)
        try:
            pool = self._furnish(name, vessel)
        except BaseException:
            await vessel.close()
            raise
        try:
            await pool.open()
        except BaseException:
            await asyncio.shield(pool.close())
            raise
        return pool

    async def _launch_foreign(
        self, name: str, image: str, marks: Mapping[str, str], warm: tuple[str, ...]
    ) -> LocalPool:
        pool = GvisorPool(self._daemon, image, name, self._settings.request, self._settings.default_limits)
        config = launch_config.foreign_config(image, marks, self._container, self._loan, warm, self._daemon.is_podman)
        await pool.open(config, self._container.start_seconds)
        return cast(LocalPool, pool)

    def _furnish(self, name: str, vessel: Container) -> ContainerPool:
        assert self._instance is not None
        cgroups = self._cgroups_in(vessel)
        walls: Mapping[str, Any] = {
            "as_root": os.geteuid() == 0,  # else the engine is this user's own, and so is every id in its containers
            "changes_uid": os.geteuid() == 0,
            "uid_base": self._instance.uid_base,
            "landlock_version": self._landlock_version,
            "cgroup": cgroups is not None,
            "own_devices": False,  # a container's warden cannot make them; its programs do without inotify
        }
        environment = describe(name, vessel.contents)
        settings = self._settings
        self._all = [each for each in self._all if not each.is_closed]
        taken = {each.block for each in self._all}
        block = next((number for number in range(_BLOCKS) if number not in taken), None)
        if block is None:
            raise Overloaded(f"{_BLOCKS} containers are open, and no more have uids of their own; try again later")
        pool = ContainerPool(vessel, environment, settings.pool, settings.default_limits, walls, cgroups, block)
        self._all.append(pool)
        return pool

    def _cgroups_in(self, vessel: Container) -> Cgroups | None:
        if "cgroup" in self._settings.jail.without_walls:
            return None
        try:
            cgroups = Cgroups(find_hierarchies(str(vessel.pid)), "belljar/jails")
            cgroups.open()
        except (CgroupsUnavailable, OSError) as error:
            missing = [f"wall 'cgroup' is missing in a container: {error} (--without-wall cgroup)"]
            raise WallMissing("; ".join(missing), walls=missing) from error
        return cgroups

    def _image_of(self, name: str) -> str:
        """Which image an environment's name stands for, where the operator has allowed it."""
        if name in self._images:
            return self._images[name]
        if not name.startswith(_IMAGE_PREFIX):
            known = sorted(self._images)
            raise UnknownEnvironment(f"there is no environment {name!r}; there are: {', '.join(known)}", known=known)
        image = name.removeprefix(_IMAGE_PREFIX)
        if not any(fnmatch.fnmatchcase(image, pattern) for pattern in self._container.allowed_images):
            raise NotAllowed(
                f"image {image!r} is not one that this server runs; ask its operator for a pattern in "
                "container.allowed_images",
                field="environment",
            )
        return image

    async def _make_room(self) -> None:
        """Not more warm containers than there may be: the least used idle one goes."""
        open_pools = [pool for pool in self._pools.current.values() if not pool.is_lost]
        if len(open_pools) < self._container.max_containers:
            return
        for name, pool in self._pools.current.items():
            if name not in self._images and pool.is_idle:
                await self._pools.end(pool)
                return
        raise Overloaded(f"all {self._container.max_containers} containers are in use; try again later")

    async def close(self) -> None:
        """End every container and let go of the engine."""
        await super().close()
        self._daemon.close()

    def facts(self) -> Mapping[str, Any]:
        """Numbers for monitoring."""
        return {
            **super().facts(),
            "containers": self._pools.alive,
            "containers_started": self._started,
            "containers_replaced": self._pools.replaced,
        }
