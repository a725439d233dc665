"""What every route works with: the engine, and everything between it and the network."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from belljar.engine.engine import Engine
from belljar.environments import Environments
from belljar.frontends.access.callers import Callers, MemoryBudget
from belljar.frontends.access.refusals import Refusal, is_fault, refusal_of
from belljar.frontends.api.health import Health, Isolation
from belljar.settings import Settings
from belljar.telemetry import Telemetry

if TYPE_CHECKING:
    from belljar.frontends.api.dialects.api_proxy.routes import Proxy

_log = logging.getLogger("belljar.api")


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """One server's engine and state, shared by all its listeners."""

    settings: Settings
    engine: Engine
    environments: Environments
    callers: Callers
    health: Health
    isolation: Isolation
    telemetry: Telemetry
    memory: MemoryBudget
    proxy: Proxy | None = None  # None: the API proxy is not served here

    def refuse(self, error: Exception) -> Refusal:
        """Count an error that becomes an answer; a fault of the server is logged, and triggers a health check."""
        refusal = refusal_of(error)
        if is_fault(error, refusal):
            _log.error("a request could not be answered: %s", error, exc_info=error)
            self.health.check_soon()
        self.telemetry.refused(refusal.status, refusal.code)
        return refusal
