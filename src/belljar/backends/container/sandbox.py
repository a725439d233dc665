"""The container back end: the local one, with every pool inside a container of its own.

Runs, limits and evidence are those of the local back end. Host and container share a kernel, so descriptors, pidfds
and cgroups reach through the container's walls, and a run in a warm container takes the path of any other run.
"""

from __future__ import annotations

import asyncio
import fnmatch
import logging
from collections.abc import Callable, Mapping
from typing import Any

from belljar.backends.container import host_python, launch_config, ownership
from belljar.backends.container.container import Container
from belljar.backends.container.engine_api import EngineApi
from belljar.backends.container.pool import ContainerPool, describe
from belljar.backends.container.toolchains import ImageToolchains
from belljar.backends.gvisor.pool import GvisorPool
from belljar.backends.local.features.feature import Features
from belljar.backends.local.host import Host
from belljar.backends.local.pool import descriptors
from belljar.backends.pooled import GuestPool, PooledSandbox, PoolSource
from belljar.contract.errors import NotAllowed, Overloaded, UnknownEnvironment, WallMissing
from belljar.contract.tools import ToolHost
from belljar.environments import Environments
from belljar.jail.cgroups import Cgroups, CgroupsUnavailable, find_hierarchies
from belljar.settings import EnvironmentSettings, Settings

_log = logging.getLogger("belljar.container")
_IMAGE_PREFIX = "image:"
_BLOCKS = 60  # of uids; what one instance has set aside is enough for as many containers


class ContainerSandbox(PooledSandbox):
    """Runs programs in jails within warm containers. Bound to the event loop that opens it."""

    def __init__(
        self,
        settings: Settings,
        environments: Environments,
        progress: Callable[[str], None],
        tools: ToolHost | None = None,
    ) -> None:
        super().__init__(settings, ContainerSource(settings, tools))

    def facts(self) -> Mapping[str, Any]:
        """Numbers for monitoring."""
        alive, replaced = self._pools.count()
        return {**super().facts(), "containers": alive, "containers_replaced": replaced}


class ContainerSource(PoolSource):
    """Makes pools in containers: of an image that the operator has named, or of one that a request names."""

    name = "container"

    def __init__(self, settings: Settings, tools: ToolHost | None) -> None:
        self._settings = settings
        self._container = settings.container
        self.is_fresh_per_run = settings.container.fresh == "run"
        self.is_fresh_per_session = settings.container.fresh != "never"
        self.pools_max = settings.container.max_containers
        images = dict(each.split("=", 1) for each in settings.container.images)
        self.environments = {"default": settings.container.image, **images}
        self._features = Features(settings.tools, tools)
        self._host = Host(settings, has_cgroup=False)  # each container has its own cgroup
        self._engine = EngineApi(settings.container)
        self._doors = settings.runtime_dir / "containers"
        self._started = 0
        self._image_ids: dict[str, str] = {}
        self._all: list[ContainerPool] = []

    async def open(self) -> None:
        """Reach the engine, clear up after dead owners, and take what every pool needs of this machine.

        Raises:
            EngineUnavailable: the engine does not answer.
            SandboxFault: no container, or no jail in it, can be had here.
        """
        await self._engine.connect()
        await self._sweep()
        self._host_python = await asyncio.to_thread(host_python.prepare, self._settings.state_dir)
        descriptors.raise_limit(self._settings.pool)
        self._host.open()

    async def _sweep(self) -> None:
        await asyncio.to_thread(ownership.sweep, self._doors)
        for container, marks in await self._engine.owned(ownership.LABEL):
            if ownership.is_orphan(marks):
                _log.warning("removing container %s, whose owner has died", container[:12])
                await self._engine.remove(container)

    def first_pool(self) -> str:
        """That of the image for programs whose caller names no environment."""
        return "default"

    def toolchains(self) -> ImageToolchains:
        """Those of the images."""
        return ImageToolchains(self._image_ids)

    def check_name(self, name: str) -> None:
        """Raises UnknownEnvironment or NotAllowed, as `_image_of`."""
        self._image_of(name)

    async def make(self, name: str) -> GuestPool:
        """A new container of the image that `name` stands for, with a pool in it."""
        image = self._image_of(name)
        self._image_ids[image] = str((await self._engine.image(image)).get("Id", ""))
        self._started += 1
        marks = ownership.labels(self._host.name)
        warm = (*self._settings.environments.get(name, EnvironmentSettings(warm_imports=())).warm_imports, "IPython")
        if launch_config.has_own_kernel(self._container.runtime):
            config = launch_config.foreign_config(
                image, marks, self._container, self._host_python, warm, self._engine.is_podman
            )
            is_disposable = name not in self.environments
            return GvisorPool(
                self._engine, image, name, config, self._settings, self._features, is_disposable=is_disposable
            )
        container = Container(self._engine, image, ownership.new_directory(self._doors))
        await container.launch(marks, warm, self._container, self._host_python)
        try:
            return self._furnish(name, container)
        except BaseException:
            await container.close()
            raise

    def _furnish(self, name: str, container: Container) -> ContainerPool:
        cgroups = self._cgroups_in(container)
        self._all = [each for each in self._all if not each.is_closed]
        taken = {each.block for each in self._all}
        block = next((number for number in range(_BLOCKS) if number not in taken), None)
        if block is None:
            raise Overloaded(f"{_BLOCKS} containers are open, and no more have uids of their own; try again later")
        # A container's warden cannot make device nodes; its programs do without inotify. Without root the engine is
        # this user's own, and so is every id in its containers.
        pool = ContainerPool(
            container,
            describe(name, container.contents),
            self._host.walls(cgroup=cgroups is not None, own_devices=False),
            cgroups,
            block,
            self._settings,
            self._features,
            self._host.network,
            is_disposable=name not in self.environments,
        )
        self._all.append(pool)
        return pool

    def _cgroups_in(self, container: Container) -> Cgroups | None:
        if "cgroup" in self._settings.jail.without_walls:
            return None
        try:
            cgroups = Cgroups(find_hierarchies(str(container.pid)), "belljar/jails")
            cgroups.open()
        except (CgroupsUnavailable, OSError) as error:
            missing = [f"wall 'cgroup' is missing in a container: {error} (--without-wall cgroup)"]
            raise WallMissing("; ".join(missing), walls=missing) from error
        return cgroups

    def _image_of(self, name: str) -> str:
        """The image that an environment's name stands for.

        Raises:
            UnknownEnvironment: it stands for none. NotAllowed: the operator has not allowed it.
        """
        if name in self.environments:
            return self.environments[name]
        if not name.startswith(_IMAGE_PREFIX):
            known = sorted(self.environments)
            raise UnknownEnvironment(f"there is no environment {name!r}; there are: {', '.join(known)}", known=known)
        image = name.removeprefix(_IMAGE_PREFIX)
        if not any(fnmatch.fnmatchcase(image, pattern) for pattern in self._container.allowed_images):
            raise NotAllowed(
                f"image {image!r} is not one that this server runs; ask its operator for a pattern in "
                "container.allowed_images",
                field="environment",
            )
        return image

    async def close(self) -> None:
        """Give back what was taken of this machine, and disconnect from the engine."""
        await self._host.close()
        self._engine.close()

    def facts(self) -> Mapping[str, Any]:
        """Numbers for monitoring."""
        return {"containers_started": self._started, **self._host.facts()}
