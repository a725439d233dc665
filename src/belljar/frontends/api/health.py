"""Can a program be run right now? Known at any time, so that asking costs nothing and never waits."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time

from belljar.contract.errors import BelljarError, Draining, Overloaded
from belljar.contract.request import ExecutionRequest
from belljar.engine.admission.request import admit
from belljar.engine.engine import Engine
from belljar.settings import Settings

_log = logging.getLogger("belljar.health")
_PROBE_SECONDS_MAX = 30.0


class Health:
    """Believes the programs that ran, and runs a small one of its own when none did for a while."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self._engine = engine
        self._probe = admit(settings, ExecutionRequest("pass"), "health")
        self._period_seconds = settings.server.probe_seconds
        self._ran_at = time.monotonic()
        self._trouble = ""
        self._doubted = asyncio.Event()

    def ran(self) -> None:
        """A program was run; how it ended does not matter."""
        self._ran_at = time.monotonic()
        self._trouble = ""

    def doubt(self) -> None:
        """A program could not be run: find out whether that was an accident."""
        self._doubted.set()

    @property
    def trouble(self) -> str:
        """Empty, or why no program can be run, in a word for everybody."""
        if self._engine.facts()["draining"]:
            return "draining"
        return self._trouble

    async def watch(self) -> None:
        """Probe for as long as the server runs."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._period_seconds):
                    await self._doubted.wait()
            if self._doubted.is_set() or time.monotonic() - self._ran_at >= self._period_seconds:
                self._doubted.clear()
                await self._try()

    async def _try(self) -> None:
        asked_at = time.monotonic()
        try:
            async with asyncio.timeout(_PROBE_SECONDS_MAX):
                await self._engine.run(self._probe)
            self.ran()
        except Draining:
            return
        except Overloaded:
            return  # busy is not broken
        except TimeoutError:
            if self._ran_at < asked_at:
                self._trouble = "stuck"
                _log.error("no program could be run for %.0f s", _PROBE_SECONDS_MAX)
        except Exception as error:  # noqa: BLE001  whatever it is, programs meet it too, and somebody has to go on looking
            self._trouble = error.code if isinstance(error, BelljarError) else "internal_error"
            _log.error("a program that does nothing could not be run: %s", error, exc_info=error)
