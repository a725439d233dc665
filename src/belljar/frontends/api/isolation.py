"""Which walls stand: tried once, when somebody first asks."""

from __future__ import annotations

import asyncio
from typing import Any

from belljar.assembly import probe_machine
from belljar.frontends.access.callers import Caller
from belljar.settings import Settings

_STATES = {"ok": "on"}


class Isolation:
    """The walls of this machine, as /v1/info tells them."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._asking: asyncio.Task[dict[str, Any]] | None = None

    async def describe(self) -> dict[str, Any]:
        """Every wall with its state.

        Raises:
            SandboxFault: they could not be tried; the next question tries again.
        """
        if self._asking is None or (self._asking.done() and self._asking.exception() is not None):
            self._asking = asyncio.create_task(asyncio.to_thread(_try_walls, self._settings))
        return await asyncio.shield(self._asking)


def describe_network(caller: Caller) -> dict[str, str]:
    """Whether this caller's programs are kept from the internet, in the words of a wall."""
    network = caller.settings.network
    if not (network.offered and caller.key.network):
        return {"state": "on", "detail": "no program has a network"}
    ports = ", ".join(network.ports)
    return {"state": "off", "detail": f"programs that ask for it reach the internet through a proxy, at ports {ports}"}


def _try_walls(settings: Settings) -> dict[str, Any]:
    """What each wall means is told; what was seen of this machine is not."""
    walls: dict[str, Any] = {}
    for wall in probe_machine(settings)["walls"]:
        is_given_up = bool(wall["waiver"]) and wall["waiver"] in settings.jail.without_walls
        state = "off" if is_given_up else _STATES.get(wall["state"], "missing")
        walls[wall["name"].strip("/").replace(" ", "_")] = {"state": state, "detail": wall["meaning"]}
    return walls
