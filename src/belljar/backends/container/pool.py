"""The pool of one image: a local pool whose warden is the first process of a container."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from belljar.backends.container.container import Container, Contents
from belljar.backends.local.features.feature import Features
from belljar.backends.local.pool.jail_slots import JAILS_MAX, JailSlots
from belljar.backends.local.pool.pool import LocalPool
from belljar.backends.local.pool.view import GuestView, Walls
from belljar.contract.backend import Watcher
from belljar.contract.errors import NotOffered, ZygoteDied
from belljar.contract.execution import Evidence, Execution
from belljar.contract.sessions import LiveSession, SessionOrder
from belljar.environments import Environment
from belljar.inside.warden import host_python
from belljar.jail import policy
from belljar.jail.cgroups import Cgroups
from belljar.settings import Settings

if TYPE_CHECKING:
    from belljar.backends.local.features.network import NetworkAccessPoint
    from belljar.backends.local.languages.steps import Command


class ContainerPool:
    """An image, warm: a `GuestPool`. Its jails' cgroups are beneath the container's, whose limits hold for all."""

    def __init__(
        self,
        container: Container,
        environment: Environment,
        walls: Walls,
        cgroups: Cgroups | None,
        block: int,
        settings: Settings,
        features: Features,
        network: Callable[[], NetworkAccessPoint],
        *,
        is_disposable: bool,
    ) -> None:
        """`block` sets the uids of its guests apart from those of other containers."""
        self.block = block
        self.is_closed = False
        self.is_disposable = is_disposable
        self.used_at = asyncio.get_running_loop().time()
        self._container = container
        self._environment = environment
        self._cgroups = cgroups
        first_uid = policy.GUEST_UID_FIRST + block * JAILS_MAX
        kept = max(1, settings.pool.ready_guests)
        self._jail_slots = JailSlots(cgroups, changes_uid=walls.as_root, kept=kept, first_uid=first_uid)
        self._pool = LocalPool(
            environment,
            image_view(container.contents, environment.warm_imports),
            walls,
            self._jail_slots,
            settings,
            features,
            network,
            process=container,
        )
        self.open = self._pool.open
        self.facts = self._pool.facts
        self.warm_up = self._pool.warm_up
        self.maintain = self._pool.maintain
        self.retire = self._pool.retire

    @property
    def is_lost(self) -> bool:
        """Whether its processes have died."""
        return self._pool.is_lost

    @property
    def is_idle(self) -> bool:
        """Whether no program and no session runs in it."""
        return self._pool.is_idle

    def shows(self, places: Mapping[str, str]) -> bool:
        """The image is all that its programs need to see."""
        return True

    async def run(
        self, execution: Execution, watcher: Watcher | None = None, command: Command | None = None
    ) -> Evidence:
        """Run one program: in the image's Python, or as `command`."""
        self.used_at = asyncio.get_running_loop().time()
        if command is None:
            check_python(self._environment)
        try:
            return await self._pool.run(execution, watcher, command)
        except OSError as error:
            if error.errno != errno.ENODEV:
                raise
            raise ZygoteDied("the container ended, and its cgroups with it") from error

    async def open_session(self, order: SessionOrder, interpreter: Mapping[str, Any] | None = None) -> LiveSession:
        """Start an interpreter that stays."""
        self.used_at = asyncio.get_running_loop().time()
        return await self._pool.open_session(order, interpreter)

    async def close(self) -> None:
        """End every process, remove every cgroup, then the container."""
        try:
            await self._pool.close()
            self._jail_slots.close()
            if self._cgroups is not None:
                self._cgroups.close()
        finally:
            await self._container.close()
            self.is_closed = True


def image_view(contents: Contents, warm_imports: tuple[str, ...]) -> GuestView:
    """All of the image but the system's own directories: it was made for the programs to see.

    The image's programs know where its certificates are.
    """
    bound = {path: path for path in contents.shown if path not in policy.SYSTEM_TREES}
    bound[host_python.IN_ROOT] = host_python.IN_CONTAINER
    if contents.prefix:
        top = f"/{contents.prefix.split('/')[1]}"
        if top not in bound and top not in policy.SYSTEM_TREES:  # such as /root/.pyenv
            bound[contents.prefix] = contents.prefix
    has_python = bool(contents.python)
    return GuestView(
        python=contents.python if has_python else f"{host_python.IN_ROOT}/{host_python.PYTHON}",
        bound=bound,
        environ=contents.environ(),
        bare_imports=() if has_python else tuple(host_python.IMPORTS),
        warm_imports=warm_imports if has_python else tuple(host_python.IMPORTS),
    )


def check_python(environment: Environment) -> None:
    """Raises NotOffered: the image has no Python that programs can be forked from."""
    if not environment.version:
        raise NotOffered(
            f"the image of environment {environment.name!r} has no Python (3.9 or newer); name a language "
            "that it has, or another environment",
            field="language",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageEnvironment(Environment):
    """An image, described as an environment. Its paths are those in the image, not those of this machine."""

    measures: bool

    @property
    def measures_coverage(self) -> bool:
        """Whether the image brings coverage.py."""
        return self.measures


def describe(name: str, contents: Contents) -> ImageEnvironment:
    """The environment that an image describes itself as."""
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
