"""What every route works with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from belljar.contract.execution import Execution, Outcome
from belljar.engine.engine import Engine
from belljar.environments import Environments
from belljar.frontends.access.callers import Callers
from belljar.frontends.api.health import Health
from belljar.frontends.api.isolation import Isolation
from belljar.frontends.api.memory_budget import BodyRoom
from belljar.frontends.api.origins import Guard
from belljar.settings import Settings
from belljar.telemetry import Telemetry

if TYPE_CHECKING:
    from belljar.frontends.api.dialects.api_proxy.routes import Proxy


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """An open engine, and all that stands between it and the network."""

    settings: Settings
    engine: Engine
    environments: Environments
    callers: Callers
    guard: Guard
    health: Health
    isolation: Isolation
    telemetry: Telemetry
    room: BodyRoom
    proxy: Proxy | None = None  # None: it is not served here

    def executed(self, execution: Execution, outcome: Outcome) -> None:
        """Count and log an execution that has its outcome."""
        self.health.ran()
        self.telemetry.executed(execution.caller, execution, outcome)
