"""The limits of a request, in the units callers use, checked against the operator's ceilings."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from belljar.contract.errors import InvalidExecution, LimitAboveCeiling
from belljar.contract.execution import LIMIT_UNITS, Limits, LimitUnit
from belljar.contract.request import NestedObject
from belljar.engine.admission.messages import show, wrong_type
from belljar.settings import Settings


def read_limits(
    settings: Settings,
    base: Limits,
    limits: Limits | Mapping[str, float] | NestedObject | None,
    timeout: float | None,
    memory_mb: float | None = None,
) -> Limits:
    """The limits that hold: `limits`, a whole Limits or some by name over `base`, changed by the two short names.

    Raises:
        CallerError: one of them cannot be given; the message names it.
    """
    is_whole = isinstance(limits, Limits)
    if isinstance(limits, Limits):
        base = _check_whole(settings, limits)
    named = [] if limits is None or is_whole else _name_limits(limits)
    if timeout is not None:
        named.append(("timeout", LIMIT_UNITS["wall_seconds"], timeout))
    if memory_mb is not None:
        named.append(("memory_mb", LIMIT_UNITS["memory_mb"], memory_mb))
    if not named:
        return base
    values: dict[str, Any] = {}
    for label, unit, value in named:
        amount = _read_limit(settings, label, unit, value)
        if values.setdefault(unit.field, amount) != amount:
            raise InvalidExecution(f"{label} and limits disagree; give one of them", field=label)
    if "wall_seconds" in values and not is_whole:
        enough = max(base.cpu_seconds, values["wall_seconds"])
        values.setdefault("cpu_seconds", min(enough, settings.ceiling_limits.cpu_seconds))
    return dataclasses.replace(base, **values)


def _name_limits(limits: Any) -> list[tuple[str, LimitUnit, Any]]:
    if isinstance(limits, NestedObject):
        limits = limits.given()
    if not isinstance(limits, Mapping):
        raise wrong_type("limits", "a mapping of limits to numbers", limits)
    unknown = [name for name in limits if name not in LIMIT_UNITS]
    if unknown:
        raise InvalidExecution(
            f"unknown limit {show(unknown[0])}; choose from {', '.join(LIMIT_UNITS)}", field="limits"
        )
    return [(f"limits.{name}", LIMIT_UNITS[name], value) for name, value in limits.items()]


def _check_whole(settings: Settings, limits: Limits) -> Limits:
    for each in dataclasses.fields(Limits):
        unit = LimitUnit(each.name, 1, each.name.rpartition("_")[2])
        _read_limit(settings, f"limits.{each.name}", unit, getattr(limits, each.name))
    return limits


def _read_limit(settings: Settings, label: str, unit: LimitUnit, value: Any) -> float | int:
    """The value as a field of Limits, once it is a positive number below the ceiling."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise wrong_type(label, "a number", value)
    if not (value > 0 and (isinstance(value, int) or math.isfinite(value))):
        raise InvalidExecution(f"{label} is {value} but must be a finite number above 0", field=label)
    ceiling = getattr(settings.ceiling_limits, unit.field)
    if value * unit.factor > ceiling:
        most = ceiling / unit.factor
        most = int(most) if most == int(most) else most
        raise LimitAboveCeiling(
            f"{label} is {show(value)}, but this server gives at most {most} {unit.word}; ask for {most} or less",
            limit=label.removeprefix("limits."),
            ceiling=most,
            unit=unit.word,
        )
    amount: float = unit.read(value)
    if unit.factor == 1 and amount != value:
        raise InvalidExecution(f"{label} is {value} but must be a whole number", field=label)
    if not amount:
        raise InvalidExecution(f"{label} is {value}, which is less than a byte; ask for more", field=label)
    return amount
