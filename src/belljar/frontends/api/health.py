"""Whether a program can be run right now, and which isolation layers are active; both are known without waiting."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import Any

from belljar.assembly import probe_machine
from belljar.contract.errors import BelljarError, Overloaded
from belljar.contract.request import ExecutionRequest
from belljar.engine.admission.request import admit
from belljar.engine.engine import Engine
from belljar.settings import Settings
from belljar.telemetry import Telemetry

_log = logging.getLogger("belljar.health")
_PROBE_SECONDS_MAX = 30.0


class Health:
    """Relies on the programs of callers, and runs a small probe when none ran for a while."""

    def __init__(self, engine: Engine, settings: Settings, telemetry: Telemetry) -> None:
        self._engine = engine
        self._telemetry = telemetry
        self._probe = admit(settings, ExecutionRequest("pass"), "health")
        self._period_seconds = settings.server.probe_seconds
        self._probed_at = time.monotonic()
        self._failure = ""
        self._failed_at = 0.0
        self._is_check_due = asyncio.Event()

    def check_soon(self) -> None:
        """Probe now: a program could not be run, and the next one may fail as well."""
        self._is_check_due.set()

    @property
    def trouble(self) -> str:
        """Empty, or one word for why no program can be run."""
        if self._engine.is_draining:
            return "draining"
        return self._failure if self._failed_at >= self._ran_at else ""

    @property
    def _ran_at(self) -> float:
        return max(self._probed_at, self._telemetry.ran_at)

    async def watch(self) -> None:
        """Probe for as long as the server runs."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._period_seconds):
                    await self._is_check_due.wait()
            if self._is_check_due.is_set() or time.monotonic() - self._ran_at >= self._period_seconds:
                self._is_check_due.clear()
                await self._run_probe()

    async def _run_probe(self) -> None:
        began = time.monotonic()
        try:
            async with asyncio.timeout(_PROBE_SECONDS_MAX):
                await self._engine.run(self._probe, is_observed=False)
            self._probed_at = time.monotonic()
        except Overloaded:
            return  # busy or draining, not broken
        except TimeoutError:
            if self._ran_at < began:
                self._fail("stuck")
                _log.error("no program could be run for %.0f s", _PROBE_SECONDS_MAX)
        except Exception as error:  # noqa: BLE001  programs of callers would meet the same error, and probing must go on
            self._fail(error.code if isinstance(error, BelljarError) else "internal_error")
            _log.error("a program that does nothing could not be run: %s", error, exc_info=error)

    def _fail(self, reason: str) -> None:
        self._failure, self._failed_at = reason, time.monotonic()


class Isolation:
    """The isolation layers of this machine, as /v1/info reports them: probed once, at the first request."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._probing: asyncio.Task[dict[str, Any]] | None = None

    async def describe(self) -> dict[str, Any]:
        """Every layer with its state.

        Raises:
            SandboxFault: the layers could not be probed; the next request tries again.
        """
        if self._probing is None or (self._probing.done() and self._probing.exception() is not None):
            self._probing = asyncio.create_task(asyncio.to_thread(_probe_layers, self._settings))
        return await asyncio.shield(self._probing)


def _probe_layers(settings: Settings) -> dict[str, Any]:
    """What each layer does is public; what was seen of this machine is not."""
    layers: dict[str, Any] = {}
    for layer in probe_machine(settings)["walls"]:
        is_waived = bool(layer["waiver"]) and layer["waiver"] in settings.jail.without_walls
        state = "off" if is_waived else "on" if layer["state"] == "ok" else "missing"
        layers[layer["name"].strip("/").replace(" ", "_")] = {"state": state, "detail": layer["meaning"]}
    return layers
