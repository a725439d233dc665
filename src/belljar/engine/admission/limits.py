"""The limits a caller asks for, in the units callers use, checked against what the operator gives."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from belljar.contract.errors import InvalidExecution, LimitAboveCeiling
from belljar.contract.execution import MIB, Limits
from belljar.engine.admission.messages import show, wrong_type
from belljar.settings import Settings


class _Unit(NamedTuple):
    field: str  # of Limits
    factor: int
    word: str


#: The limits by the names callers use.
_UNITS: Mapping[str, _Unit] = {
    "wall_seconds": _Unit("wall_seconds", 1, "seconds"),
    "cpu_seconds": _Unit("cpu_seconds", 1, "seconds"),
    "memory_mb": _Unit("memory_bytes", MIB, "MiB"),
    "output_kb": _Unit("output_bytes", 1024, "KiB"),
    "disk_mb": _Unit("disk_bytes", MIB, "MiB"),
    "processes": _Unit("processes", 1, "processes and threads"),
}


def read_limits(
    settings: Settings, limits: Limits | Mapping[str, float] | None, timeout: float | None, memory_mb: float | None
) -> Limits:
    """The limits that hold, from all the ways to ask for them.

    Raises:
        CallerError: one of them cannot be given; the message names it.
    """
    is_whole = isinstance(limits, Limits)
    base = _check_whole(settings, limits) if isinstance(limits, Limits) else settings.default_limits
    asked = [] if limits is None or is_whole else _name_limits(limits)
    if timeout is not None:
        asked.append(("timeout", _UNITS["wall_seconds"], timeout))
    if memory_mb is not None:
        asked.append(("memory_mb", _UNITS["memory_mb"], memory_mb))
    if not asked:
        return base
    values: dict[str, Any] = {}
    for label, unit, value in asked:
        amount = _read_limit(settings, label, unit, value)
        if values.setdefault(unit.field, amount) != amount:
            raise InvalidExecution(f"{label} and limits disagree; give one of them", field=label)
    if "wall_seconds" in values and not is_whole:
        enough = max(base.cpu_seconds, values["wall_seconds"])
        values.setdefault("cpu_seconds", min(enough, settings.ceiling_limits.cpu_seconds))
    return dataclasses.replace(base, **values)


def _name_limits(limits: Any) -> list[tuple[str, _Unit, Any]]:
    if not isinstance(limits, Mapping):
        raise wrong_type("limits", "a mapping of limits to numbers", limits)
    unknown = [name for name in limits if name not in _UNITS]
    if unknown:
        raise InvalidExecution(f"limits has no {show(unknown[0])}; known are: {', '.join(_UNITS)}", field="limits")
    return [(f"limits.{name}", _UNITS[name], value) for name, value in limits.items()]


def _check_whole(settings: Settings, limits: Limits) -> Limits:
    for each in dataclasses.fields(Limits):
        unit = _Unit(each.name, 1, each.name.rpartition("_")[2])
        _read_limit(settings, f"limits.{each.name}", unit, getattr(limits, each.name))
    return limits


def _read_limit(settings: Settings, label: str, unit: _Unit, value: Any) -> float | int:
    """The value in the unit of Limits, once it is a positive number that the operator gives."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise wrong_type(label, "a number", value)
    if not (value > 0 and (isinstance(value, int) or math.isfinite(value))):
        raise InvalidExecution(f"{label} is {value} but must be a finite number above 0", field=label)
    ceiling = getattr(settings.ceiling_limits, unit.field)
    if value * unit.factor > ceiling:
        most = _plain(ceiling / unit.factor)
        raise LimitAboveCeiling(
            f"{label} is {show(value)}, but this server gives at most {most} {unit.word}; ask for {most} or less",
            limit=label.removeprefix("limits."),
            ceiling=most,
            unit=unit.word,
        )
    if unit.word == "seconds":
        return float(value)
    amount = int(value * unit.factor)
    if unit.factor == 1 and amount != value:
        raise InvalidExecution(f"{label} is {value} but must be a whole number", field=label)
    if amount < 1:
        raise InvalidExecution(f"{label} is {value}, which is less than a byte; ask for more", field=label)
    return amount


def _plain(number: float) -> float | int:
    return int(number) if number == int(number) else number
