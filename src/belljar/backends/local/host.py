"""What one sandbox takes of this machine: a range of uids, a cgroup, the isolation layers, and an egress process."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from belljar.backends.local.pool import descriptors
from belljar.backends.local.pool.view import Walls
from belljar.contract.errors import SandboxFault, WallMissing
from belljar.jail import instance, syscalls
from belljar.jail.cgroups import Cgroups, CgroupsUnavailable, find_hierarchies
from belljar.settings import Settings

if TYPE_CHECKING:
    from belljar.backends.local.features.network import NetworkAccessPoint


class Host:
    """Opened and closed with the sandbox; all of its pools share it."""

    def __init__(self, settings: Settings, *, has_cgroup: bool) -> None:
        """`has_cgroup`: the sandbox has a cgroup of its own; else each of its pools finds one."""
        self.cgroups: Cgroups | None = None
        self.landlock_version = 0
        self._settings = settings
        self._has_cgroup = has_cgroup
        self._instance: instance.Instance | None = None
        self._network: NetworkAccessPoint | None = None

    def open(self) -> None:
        """Take it, and check that every isolation layer is there that was not given up.

        Raises:
            WallMissing: an isolation layer is missing and was not given up.
            SandboxFault, Overloaded: the machine refuses.
        """
        jail = self._settings.jail
        try:
            self.landlock_version = syscalls.landlock_version() if "landlock" not in jail.without_walls else 0
            self._instance = instance.reserve(self._settings.runtime_dir, jail.uid_base)
            missing = self._find_missing_walls()
        except OSError as error:
            if descriptors.is_one(error):
                raise descriptors.refusal() from error
            raise SandboxFault(f"cannot use {self._settings.runtime_dir}: {error}") from error
        if missing:
            raise WallMissing("; ".join(missing) + ". Nothing was run.", walls=missing)

    def _find_missing_walls(self) -> list[str]:
        """Isolation layers that are missing and were not given up, each with how to get it."""
        given_up = self._settings.jail.without_walls
        missing = []
        if "landlock" not in given_up and not self.landlock_version:
            missing.append("wall 'landlock' is missing: use Linux 5.13 or newer with landlock enabled (lsm=landlock,…)")
        if "uid" not in given_up and os.geteuid() != 0:
            missing.append(
                "wall 'uid' is missing: guests would have your own uid on the host; run as root (--without-wall uid)"
            )
        if "cgroup" not in given_up and self._has_cgroup:
            try:
                self._open_cgroups()
            except CgroupsUnavailable as error:
                missing.append(f"wall 'cgroup' is missing: {error} (--without-wall cgroup)")
        return missing

    def _open_cgroups(self) -> None:
        assert self._instance is not None
        cgroups = Cgroups(find_hierarchies(), f"{self._settings.jail.cgroup_parent}/{self._instance.name}")
        self._instance.note([directory for _, directory in cgroups.directories])
        cgroups.open()
        self.cgroups = cgroups

    @property
    def name(self) -> str:
        """Unlike that of any other sandbox on this machine."""
        assert self._instance is not None
        return self._instance.name

    def walls(self, *, cgroup: bool, own_devices: bool) -> Walls:
        """The isolation layers of a pool."""
        assert self._instance is not None
        return Walls(
            as_root=os.geteuid() == 0,
            uid_base=self._instance.uid_base,
            landlock_version=self.landlock_version,
            cgroup=cgroup,
            own_devices=own_devices,
        )

    def network(self) -> NetworkAccessPoint:
        """The way by which all programs that may use the network reach it; made when first needed."""
        if self._network is None:
            from belljar.backends.local.features.network import NetworkAccessPoint

            assert self._instance is not None
            self._network = NetworkAccessPoint(self._settings.network, self._instance.uid_base, self.landlock_version)
        return self._network

    def facts(self) -> dict[str, int]:
        """Numbers for monitoring."""
        return {} if self._network is None else dict(self._network.facts())

    async def close(self) -> None:
        """Give everything back; all pools are closed."""
        if self._network is not None:
            await self._network.close()
            self._network = None
        self.give_back()

    def give_back(self) -> None:
        """The same for a host that no pool was made on; does not wait."""
        if self.cgroups is not None:
            self.cgroups.close()  # every process in them is dead: this takes no time
            self.cgroups = None
        if self._instance is not None:
            self._instance.close()
            self._instance = None
