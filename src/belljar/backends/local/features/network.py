"""Network access of one program or session: a proxy on its own loopback, served by the egress process."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

from belljar.backends.local.pool import descriptors
from belljar.backends.local.pool.warden_handle import OutOfDescriptors, StartFailed, WardenHandle
from belljar.contract.errors import CannotBranch, JailSetupFailed, SandboxFault, ZygoteDied
from belljar.contract.execution import Evidence, NetworkUse
from belljar.egress.handle import Egress, EgressLost, OpenProxy
from belljar.jail import policy
from belljar.settings import NetworkSettings

_ANY_PORT = 0
_CERTIFICATES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS")  # OpenSSL, requests and pip, Node
_NOT_PROXIED = "localhost,127.0.0.1,::1"


class NetworkAccessPoint:
    """Gives programs access to the network. Belongs to one sandbox, and to its event loop."""

    def __init__(self, settings: NetworkSettings, uid_base: int, landlock_version: int) -> None:
        self._egress = Egress(
            {
                "rules": {
                    name: getattr(settings, name) for name in ("ports", "allow", "deny", "allow_private", "hosts")
                },
                "bounds": {
                    name: getattr(settings, name)
                    for name in ("connections", "connections_at_once", "total_bytes", "connect_seconds", "idle_seconds")
                },
                "uid": uid_base + policy.EGRESS_UID if os.geteuid() == 0 else None,
                "landlock_version": landlock_version,
            }
        )

    async def open(self, warden: WardenHandle, certificates: str, place: int, port: int = _ANY_PORT) -> NetworkAccess:
        """Open access for the processes in the network namespace `place`: a descriptor of it, or of a process in it.

        `certificates` is where programs find those of the authorities that sign for web sites; empty: not known.

        Raises:
            JailSetupFailed: no access can be had.
        """
        port, proxy = await self.open_proxy(warden, place, port)
        return NetworkAccess(self, warden, certificates, place, port, proxy)

    async def open_proxy(self, warden: WardenHandle, place: int, port: int) -> tuple[int, OpenProxy]:
        """Have the egress process serve a listener in `place`; return its port with the proxy."""
        try:
            port, listener = await warden.listen(place, port)
        except OutOfDescriptors as error:
            raise descriptors.refusal() from error
        except StartFailed as error:
            raise JailSetupFailed("network", str(error)) from error
        try:
            return port, await self._egress.open(listener)
        except EgressLost as error:
            raise JailSetupFailed("network", str(error)) from error
        finally:
            os.close(listener)

    async def close(self) -> None:
        """End every connection."""
        await self._egress.close()

    def facts(self) -> Mapping[str, Any]:
        """Numbers for monitoring."""
        return {f"network_{name}": count for name, count in self._egress.counts.items()}


class NetworkAccess:
    """The access of one program or session, for as long as it lives. Close it, whatever happens."""

    def __init__(
        self,
        point: NetworkAccessPoint,
        warden: WardenHandle,
        certificates: str,
        place: int,
        port: int,
        proxy: OpenProxy,
    ) -> None:
        self._point = point
        self._warden = warden
        self._certificates = certificates
        self._place = place
        self._port = port
        self._proxy = proxy

    def equip(self, env: Mapping[str, str]) -> dict[str, str]:
        """Add the variables by which programs find a proxy."""
        proxy = f"http://127.0.0.1:{self._port}"
        named = {"http_proxy": proxy, "https_proxy": proxy, "all_proxy": proxy, "no_proxy": _NOT_PROXIED}
        upper = {name.upper(): value for name, value in named.items()}
        certificates = dict.fromkeys(_CERTIFICATES, self._certificates) if self._certificates else {}
        return {**named, **upper, **certificates, "NODE_USE_ENV_PROXY": "1", **env}

    async def complete(self, evidence: Evidence) -> Evidence:
        """The evidence of a cell, with what it used of the network.

        Raises:
            SandboxFault: the egress process has died; the next cell has another.
        """
        counts = await self._proxy.renew()
        if counts is None:
            await self._open_again()
            raise _lost("cell")
        return dataclasses.replace(evidence, network=NetworkUse(**counts))

    async def _open_again(self) -> None:
        """Replace a proxy whose process has died; not once the session has ended: its jail may be reused by now."""
        lost = self._proxy
        if lost.is_closing():
            return
        _, opened = await self._point.open_proxy(self._warden, self._place, self._port)
        if lost.is_closing():
            opened.drop()
        else:
            self._proxy = opened

    async def finish(self, evidence: Evidence) -> Evidence:
        """The evidence of a program that has ended, with what it used. No connection is open when this returns."""
        counts = await self._proxy.close()
        if counts is None:
            raise _lost("program")
        return dataclasses.replace(evidence, network=NetworkUse(**counts))

    async def forbid_repeating(self, error: ZygoteDied) -> None:
        """Raise if the program, whose guest was lost, has connected to anything: it would do so twice."""
        counts = await self._proxy.close()
        if counts is None or counts["connections"]:
            raise SandboxFault("the program was lost after it had used the network, so it was not run again") from error

    async def branch(self, place: int) -> NetworkAccess:
        """Open access for a copy of the session at the same port of its own loopback: it has the variables already."""
        try:
            return await self._point.open(self._warden, self._certificates, place, self._port)
        except JailSetupFailed as error:  # most likely the copy's own doing: it has ended, or has the port
            raise CannotBranch(f"the copy could not be given its network: {error.message}") from error

    async def close(self) -> None:
        """End every connection, and wait until that is done."""
        await self._proxy.close()

    def drop(self) -> None:
        """End every connection soon."""
        self._proxy.drop()


def _lost(what: str) -> SandboxFault:
    return SandboxFault(f"the network of this {what} was lost while it ran, so its result says nothing")
