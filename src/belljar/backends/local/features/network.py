"""The way out of one program or session: a listener on its own loopback, handed to the process that goes out."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

from belljar.backends.local.pool.pool import LocalPool
from belljar.contract.errors import JailSetupFailed, SandboxFault, ZygoteDied
from belljar.contract.execution import Evidence, NetworkUse
from belljar.egress.handle import Egress, EgressLost, OpenProxy
from belljar.jail import policy
from belljar.settings import NetworkSettings

_ANY_PORT = 0
_CERTIFICATES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS")  # OpenSSL, requests and pip, Node
_STAYS_AT_HOME = "localhost,127.0.0.1,::1"


class NetworkAccessPoint:
    """Opens ways out. Belongs to one sandbox, and to its event loop."""

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

    async def open(self, pool: LocalPool, place: int, port: int = _ANY_PORT) -> NetworkAccess:
        """For whoever lives in the network namespace of `place`, a process or the namespace itself.

        Raises:
            JailSetupFailed: there is none to be had.
        """
        port, passage = await self.open_passage(pool, place, port)
        return NetworkAccess(self, pool, place, port, passage)

    async def open_passage(self, pool: LocalPool, place: int, port: int) -> tuple[int, OpenProxy]:
        """What is behind one, and the port that it is at."""
        port, listener = await pool.listen(place, port)
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
    """Open as long as its program or session lives. Close it, whatever happens."""

    def __init__(self, ways: NetworkAccessPoint, pool: LocalPool, place: int, port: int, passage: OpenProxy) -> None:
        self._ways = ways
        self._pool = pool
        self._place = place
        self._port = port
        self._passage = passage

    def equip(self, env: Mapping[str, str]) -> dict[str, str]:
        """These variables, and those by which programs find a proxy."""
        proxy = f"http://127.0.0.1:{self._port}"
        named = {"http_proxy": proxy, "https_proxy": proxy, "all_proxy": proxy, "no_proxy": _STAYS_AT_HOME}
        upper = {name.upper(): value for name, value in named.items()}
        certificates = dict.fromkeys(_CERTIFICATES, path) if (path := self._pool.certificates) else {}
        return {**named, **upper, **certificates, "NODE_USE_ENV_PROXY": "1", **env}

    async def complete(self, evidence: Evidence) -> Evidence:
        """The evidence of a cell, with what it used.

        Raises:
            SandboxFault: the process that goes out has died; the next cell has another.
        """
        counts = await self._passage.renew()
        if counts is None:
            await self._open_again()
            raise _lost("cell")
        return dataclasses.replace(evidence, network=NetworkUse(**counts))

    async def _open_again(self) -> None:
        """In place of a passage whose process has died; not for who has ended, whose place may be another's by now."""
        lost = self._passage
        if lost.is_closing():
            return
        _, opened = await self._ways.open_passage(self._pool, self._place, self._port)
        if lost.is_closing():
            opened.drop()
        else:
            self._passage = opened

    async def finish(self, evidence: Evidence) -> Evidence:
        """The same for a program, at its end: nothing is open when this returns."""
        counts = await self._passage.close()
        if counts is None:
            raise _lost("program")
        return dataclasses.replace(evidence, network=NetworkUse(**counts))

    async def forbid_repeating(self, error: ZygoteDied) -> None:
        """A program whose guest was lost is run again, but not once it has reached somebody: it would do so twice."""
        counts = await self._passage.close()
        if counts is None or counts["connections"]:
            raise SandboxFault("the program was lost after it had used the network, so it was not run again") from error

    async def branch(self, place: int) -> NetworkAccess:
        """One for a copy of the session, which has the variables already: at the same port of its own loopback."""
        return await self._ways.open(self._pool, place, self._port)

    async def close(self) -> None:
        """End every connection, and wait for that."""
        await self._passage.close()

    def drop(self) -> None:
        """End every connection soon."""
        self._passage.drop()


def _lost(what: str) -> SandboxFault:
    return SandboxFault(f"the network of this {what} was lost while it ran, so what became of it says nothing")
