"""The pool of one image: like any pool, but its warden is the first process of a container."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from belljar import channel
from belljar.backends.container.container import Container, Contents
from belljar.backends.local.pool.jails import JAILS_MAX, JailSlots
from belljar.backends.local.pool.pool import LocalPool
from belljar.backends.local.pool.warden_handle import StartFailed, WardenHandle
from belljar.contract.execution import Limits
from belljar.environments import Environment
from belljar.inside.warden import host_python
from belljar.jail import policy
from belljar.jail.cgroups import Cgroups
from belljar.settings import PoolSettings


class ContainerWarden(WardenHandle):
    """The host's end of the socket to a warden that a container engine has started."""

    def __init__(self, vessel: Container, on_lost: Callable[[], None]) -> None:
        super().__init__(on_lost)
        self._vessel = vessel

    async def start(self, orders: Mapping[str, Any]) -> None:
        """Tell it what to build, and wait until its pool is there."""
        self._socket = self._vessel.take_socket()
        try:
            channel.send(self._socket, {"log": True}, descriptors=[self.log.write])
            await self._finish_start(orders)
        except channel.ChannelClosed as error:
            raise StartFailed("the container has ended") from error

    def kill(self) -> None:
        """End the whole container."""
        self._vessel.kill()

    async def close(self) -> None:
        """Leave, and wait until everyone in the container is gone."""
        if hasattr(self, "_socket"):
            self._loop.remove_reader(self._socket)
            self._socket.close()
            await self._vessel.left()
        self.log.close()
        if not self._ready.done():
            self._ready.cancel()


class ContainerPool(LocalPool):
    """An image, warm. Its jails' cgroups lie below the container's own, so that its limits hold for all of them."""

    def __init__(
        self,
        vessel: Container,
        environment: Environment,
        pool: PoolSettings,
        default_limits: Limits,
        walls: Mapping[str, Any],
        cgroups: Cgroups | None,
        block: int,
    ) -> None:
        """`block` sets its guests' uids apart from those of other containers."""
        self.vessel = vessel
        self.block = block
        self.is_closed = False
        self._own_cgroups = cgroups
        first_uid = policy.GUEST_UID_FIRST + block * JAILS_MAX
        kept = max(1, pool.ready_guests)
        self._own_jail_slots = JailSlots(cgroups, changes_uid=walls["changes_uid"], kept=kept, first_uid=first_uid)
        super().__init__(
            environment,
            self._own_jail_slots,
            pool,
            default_limits,
            walls,
            make_warden=lambda lost: ContainerWarden(vessel, lost),
        )

    def _places(self) -> tuple[dict[str, str], list[str]]:
        """All of the image but what is the system's own business: it was made for the programs to see."""
        contents = self.vessel.contents
        bound = {path: path for path in contents.shown if path not in policy.SYSTEM_TREES}
        bound[host_python.IN_ROOT] = host_python.IN_CONTAINER
        if contents.prefix:
            top = f"/{contents.prefix.split('/')[1]}"
            if top not in bound and top not in policy.SYSTEM_TREES:  # such as /root/.pyenv
                bound[contents.prefix] = contents.prefix
        return bound, []

    def _python(self) -> str:
        return self.vessel.contents.python or f"{host_python.IN_ROOT}/{host_python.PYTHON}"

    def _imports(self, kind: str) -> list[str]:
        return super()._imports(kind) if self.vessel.contents.python else list(host_python.IMPORTS)

    @property
    def certificates(self) -> str:
        """The image's programs know where its own are."""
        return ""

    def _environ(self) -> dict[str, str]:
        return self.vessel.contents.environ()

    async def close(self) -> None:
        """End every process, remove every cgroup, then the container."""
        try:
            await super().close()
            self._own_jail_slots.close()
            if self._own_cgroups is not None:
                self._own_cgroups.close()
        finally:
            await self.vessel.close()
            self.is_closed = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageEnvironment(Environment):
    """An image in the words that worlds know. No path in it is one of this machine's."""

    measures: bool

    @property
    def measures_coverage(self) -> bool:
        """Whether the image brings coverage.py."""
        return self.measures


def describe(name: str, contents: Contents) -> ImageEnvironment:
    """What an image has said of itself."""
    return ImageEnvironment(
        name=name,
        root=Path(contents.prefix),
        python=Path(contents.python),
        version=contents.version,
        bound_paths=(),
        packages=tuple(("ipython", "") for name in contents.warm if name == "IPython"),  # what sessions look for
        warm_imports=tuple(name for name in contents.warm if name != "IPython"),
        built_at="",
        measures=contents.measures,
    )
