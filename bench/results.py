"""Turn samples into the rows of a table and a verdict on each target."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

OURS = "belljar"
REFERENCE = "fork+run, same modules"  # what the targets are judged by
FLOOR = "fork+run"  # slimmer than anything that behaves like `python main.py`; reported beside it
_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One turn of one contender."""

    contender: str
    workload: str
    round_number: int
    in_flight: int
    durations: list[float]
    wall_seconds: float
    cpu_seconds: float
    others_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Burst:
    """Many programs submitted at once."""

    count: int
    seconds: float
    predicted_seconds: float
    others_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """An idle service, with the bare zygote only, or with the one that has packages imported as well."""

    with_packages: bool
    processes: list[dict[str, Any]]

    @property
    def proportional_mib(self) -> float:
        """Pss of the whole service."""
        return float(sum(each["proportional"] for each in self.processes)) / _MIB

    def private_mib(self, role: str) -> float:
        """Private memory of the median process of this role."""
        found = [each["private"] for each in self.processes if each["role"] == role]
        return statistics.median(found) / _MIB if found else float("nan")

    def count(self, role: str) -> int:
        """The number of processes of a role."""
        return sum(each["role"] == role for each in self.processes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One contender on one workload, all rounds together."""

    contender: str
    workload: str
    p50_ms: float
    p99_ms: float
    runs: int
    rate: float
    rate_spread: tuple[float, float]
    cpu_alone_ms: float
    cpu_many_ms: float
    others_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A target, what was measured (the median of the rounds, and their range), and whether it holds."""

    what: str
    limit: float
    at_least: bool
    unit: str
    measured: float | None  # None: could not be measured here
    spread: tuple[float, float] | None
    of_floor: float | None = None  # the same ratio, to the slim floor instead of the reference

    @property
    def met(self) -> bool | None:
        """None if it could not be measured."""
        return self._holds(self.measured)

    @property
    def met_of_floor(self) -> bool | None:
        """Whether it would also hold against the floor."""
        return self._holds(self.of_floor)

    def _holds(self, value: float | None) -> bool | None:
        if value is None:
            return None
        return value >= self.limit if self.at_least else value <= self.limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Everything a report needs."""

    rows: list[Row]
    targets: list[Target]
    bursts: list[Burst]
    idle: list[Idle]
    conditions: dict[str, str]
    walls: dict[str, str]
    notes: list[str]


def judge(
    samples: list[Sample],
    bursts: list[Burst],
    idle: list[Idle],
    conditions: dict[str, str],
    walls: dict[str, str],
    notes: list[str],
) -> Result:
    """Sum up."""
    keys = dict.fromkeys((sample.workload, sample.contender) for sample in samples)
    rows = [_row(workload, contender, samples) for workload, contender in keys]
    order = {name: place for place, name in enumerate(("hello", "data", "cpu", "tasks"))}
    rows.sort(key=lambda row: (order[row.workload], row.p50_ms))
    return Result(
        rows=rows,
        targets=_targets(samples, bursts, idle),
        bursts=bursts,
        idle=idle,
        conditions=conditions,
        walls=walls,
        notes=notes,
    )


def _row(workload: str, contender: str, samples: list[Sample]) -> Row:
    found = [each for each in samples if (each.workload, each.contender) == (workload, contender)]
    alone = [each for each in found if each.in_flight == 1]
    many = [each for each in found if each.in_flight > 1]
    durations = sorted(duration for each in alone for duration in each.durations)
    rates = [_rate(each) for each in many]
    return Row(
        contender=contender,
        workload=workload,
        p50_ms=_quantile(durations, 0.5) * 1e3,
        p99_ms=_quantile(durations, 0.99) * 1e3,
        runs=len(durations),
        rate=statistics.median(rates),
        rate_spread=(min(rates), max(rates)),
        cpu_alone_ms=statistics.median(map(_cpu_ms, alone)),
        cpu_many_ms=statistics.median(map(_cpu_ms, many)),
        others_share=statistics.median(each.others_share for each in found),
    )


def _quantile(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _rate(sample: Sample) -> float:
    return len(sample.durations) / sample.wall_seconds


def _cpu_ms(sample: Sample) -> float:
    return sample.cpu_seconds / len(sample.durations) * 1e3


def _p50(sample: Sample) -> float:
    return _quantile(sorted(sample.durations), 0.5)


def _p99(sample: Sample) -> float:
    return _quantile(sorted(sample.durations), 0.99)


def _targets(samples: list[Sample], bursts: list[Burst], idle: list[Idle]) -> list[Target]:
    def pick(contender: str, workload: str, many: bool) -> dict[int, Sample]:
        return {
            each.round_number: each
            for each in samples
            if each.contender == contender and each.workload == workload and (each.in_flight > 1) == many
        }

    def ratio(
        what: str,
        limit: float,
        value: Callable[[Sample], float],
        workload: str,
        peer: str,
        *,
        many: bool,
        at_least: bool,
    ) -> Target:
        """Ours over the peer's, paired within each round: conditions on the machine were the same for both."""

        def ratios(peer: str) -> list[float]:
            ours, theirs = pick(OURS, workload, many), pick(peer, workload, many)
            return [value(ours[each]) / value(theirs[each]) for each in ours.keys() & theirs.keys()]

        of_floor = statistics.median(ratios(FLOOR)) if peer == REFERENCE else None
        return _target(what, limit, at_least, "×", ratios(peer), of_floor)

    tails = [_p99(each) / _p50(each) for each in pick(OURS, "hello", False).values()]
    bare, packages = (next(each for each in idle if each.with_packages is wanted) for wanted in (False, True))
    return [
        ratio(
            "hello: CPU per run, one in flight, of fork+run's",
            1.7,
            _cpu_ms,
            "hello",
            REFERENCE,
            many=False,
            at_least=False,
        ),
        ratio(
            "hello: CPU per run, 16 in flight, of fork+run's",
            1.7,
            _cpu_ms,
            "hello",
            REFERENCE,
            many=True,
            at_least=False,
        ),
        ratio("hello: p50 of fork+run's", 1.3, _p50, "hello", REFERENCE, many=False, at_least=False),
        _target("hello: p99 of our own p50", 4.0, False, "×", tails),
        ratio("hello: rate at 16 of fork+run's", 0.6, _rate, "hello", REFERENCE, many=True, at_least=True),
        ratio("hello: rate at 16 of bubblewrap's", 6.0, _rate, "hello", "bwrap python", many=True, at_least=True),
        ratio(
            "data: p50 of fork+run's with the imports done", 1.4, _p50, "data", REFERENCE, many=False, at_least=False
        ),
        ratio("data: rate at 16 of cold python's", 20.0, _rate, "data", "cold python", many=True, at_least=True),
        _target("idle ready guest, bare: private memory", 3.0, False, "MB", [bare.private_mib("ready guest bare")]),
        _target("whole idle service, bare zygote only: Pss", 250.0, False, "MB", [bare.proportional_mib]),
        _target("whole idle service, packages zygote warm too: Pss", 250.0, False, "MB", [packages.proportional_mib]),
        _target(
            f"{bursts[0].count:,} programs at once: time of what the rate predicts",
            2.0,
            False,
            "×",
            [burst.seconds / burst.predicted_seconds for burst in bursts],
        ),
    ]


def _target(
    what: str, limit: float, at_least: bool, unit: str, values: list[float], of_floor: float | None = None
) -> Target:
    known = [value for value in values if value == value]
    return Target(
        what=what,
        limit=limit,
        at_least=at_least,
        unit=unit,
        measured=statistics.median(known) if known else None,
        spread=(min(known), max(known)) if len(known) > 1 else None,
        of_floor=of_floor,
    )
