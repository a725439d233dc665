"""Measure Belljar beside what it builds on and what it replaces; print tables, draw a plot, write both into docs/.

One command, one run: contenders take turns in a new random order each round, every output is compared exactly, and
only ratios within the run are judged. See bench/README.md for how far to trust them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from contenders import Batch, Belljar, Contender, all_contenders
from meters import Bystanders, CpuMeter
from report import publish, show
from results import Burst, Idle, Result, Sample, judge
from rich.console import Console
from workloads import Workload, all_workloads

from belljar.environments import Environments
from belljar.settings import load

_DOCS = Path(__file__).resolve().parent.parent / "docs"
_IN_FLIGHT = 16
_RUNS_MAX = 100_000
_WIDTH = 130  # of tables that go into a file or a pipe


def main() -> None:
    """Parse the command line, measure, publish."""
    options = _read_options()
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_WIDTH)
    with tempfile.TemporaryDirectory(prefix="belljar-bench-") as directory:
        result = asyncio.run(_measure(options, Path(directory), console))
    output_dir = options.output_dir
    if output_dir is None:
        output_dir = Path(tempfile.mkdtemp(prefix="belljar-bench-")) if options.quick else _DOCS
    show(result, console)
    for path in publish(result, output_dir):
        console.print(f"wrote {path}")


def _read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Measure Belljar beside the fork it is made of, bubblewrap and Python."
    )
    parser.add_argument("--quick", action="store_true", help="tiny counts: proves that it works, measures nothing")
    parser.add_argument("--rounds", type=int, help="how often every contender has its turn (12; quick: 1)")
    parser.add_argument("--seconds", type=float, help="length of each measurement (0.4; quick: 0.05)")
    parser.add_argument("--at-once", type=int, help="programs submitted at once (1000; quick: 50)")
    parser.add_argument("--output-dir", type=Path, help="where to write (docs/; quick: a new temporary directory)")
    options = parser.parse_args()
    options.rounds = options.rounds or (1 if options.quick else 12)
    options.seconds = options.seconds or (0.05 if options.quick else 0.4)
    options.at_once = options.at_once or (50 if options.quick else 1000)
    return options


async def _measure(options: argparse.Namespace, directory: Path, console: Console) -> Result:
    python = await _guest_python(console)
    workloads = all_workloads(python)
    began = time.monotonic()
    meter = CpuMeter()
    try:
        contenders, notes = all_contenders(python, directory)
        for note in notes:
            console.print(f"[bold red]NOTE: {note}")
        samples, bursts = await _take_turns(options, contenders, workloads, meter, console)
        idle = [_measure_idle(None), _measure_idle(workloads[1].programs[0].code)]
    finally:
        meter.close()
    conditions = _conditions(options, python, meter, samples, time.monotonic() - began)
    walls = {contender.name: contender.walls for contender in contenders}
    return judge(samples, bursts, idle, conditions, walls, notes)


async def _guest_python(console: Console) -> Path:
    """The interpreter every contender uses: that of the default guest environment, built if it is not there."""
    settings = load()
    environments = Environments(settings.state_dir, settings.environments)
    return (await asyncio.to_thread(environments.ensure, "default", console.print)).python


async def _take_turns(
    options: argparse.Namespace,
    contenders: list[Contender],
    workloads: list[Workload],
    meter: CpuMeter,
    console: Console,
) -> tuple[list[Sample], list[Burst]]:
    samples: list[Sample] = []
    bursts: list[Burst] = []
    opened: list[Contender] = []
    try:
        for contender in contenders:
            opened.append(contender)
            await contender.open()
        await _warm_up(contenders, workloads)
        for round_number in range(1, options.rounds + 1):
            console.print(f"round {round_number} of {options.rounds}, load {os.getloadavg()[0]:.1f}")
            # One workload after the other: contenders that are compared are measured within seconds of each other.
            for workload in random.sample(workloads, len(workloads)):
                for contender in random.sample(contenders, len(contenders)):
                    if contender.takes(workload):
                        samples += await _turn(options, contender, workload, meter, round_number)
            bursts.append(await _burst(options, contenders, workloads[0], meter))
    finally:
        for contender in opened:
            await contender.close()
    return samples, bursts


async def _warm_up(contenders: list[Contender], workloads: list[Workload]) -> None:
    for contender in contenders:
        for workload in workloads:
            if contender.takes(workload):
                await contender.run(workload, Batch(in_flight=2, seconds=0.0, runs_min=4, runs_max=4))


async def _turn(
    options: argparse.Namespace, contender: Contender, workload: Workload, meter: CpuMeter, round_number: int
) -> list[Sample]:
    """One contender on one workload: alone, then with many in flight."""
    samples = []
    for in_flight in (1, _IN_FLIGHT):
        runs_min = 3 if in_flight == 1 or options.quick else in_flight
        runs_max = 4 if options.quick else _RUNS_MAX
        batch = Batch(in_flight=in_flight, seconds=options.seconds, runs_min=runs_min, runs_max=runs_max)
        others = Bystanders(meter)
        cpu_before = meter.seconds()
        runs = await contender.run(workload, batch)
        cpu_seconds = meter.seconds() - cpu_before
        samples.append(
            Sample(
                contender=contender.name,
                workload=workload.name,
                round_number=round_number,
                in_flight=in_flight,
                durations=runs.durations,
                wall_seconds=runs.wall_seconds,
                cpu_seconds=cpu_seconds,
                others_share=others.share(),
            )
        )
    return samples


async def _burst(
    options: argparse.Namespace, contenders: list[Contender], workload: Workload, meter: CpuMeter
) -> Burst:
    """Run a thousand programs at once, after measuring the rate that predicts how long they take."""
    ours = next(each for each in contenders if isinstance(each, Belljar))
    batch = Batch(in_flight=_IN_FLIGHT, seconds=options.seconds, runs_min=1, runs_max=_RUNS_MAX)
    others = Bystanders(meter)
    runs = await ours.run(workload, batch)
    seconds = await ours.run_at_once(workload.programs[0], options.at_once)
    predicted = options.at_once * runs.wall_seconds / len(runs.durations)
    return Burst(count=options.at_once, seconds=seconds, predicted_seconds=predicted, others_share=others.share())


def _measure_idle(warming: str | None) -> Idle:
    command = [sys.executable, str(Path(__file__).with_name("idle_service.py")), *([warming] if warming else [])]
    answer = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return Idle(with_packages=warming is not None, processes=answer["processes"])


def _conditions(
    options: argparse.Namespace, python: Path, meter: CpuMeter, samples: list[Sample], wall_seconds: float
) -> dict[str, str]:
    """Notes that a reader needs about this run."""
    others = sorted(sample.others_share for sample in samples)
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    bubblewrap = shutil.which("bwrap")
    return {
        "when": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {wall_seconds / 60:.1f} minutes"
        + (", QUICK: these numbers measure nothing" if options.quick else ""),
        "rounds": f"{options.rounds}, {options.seconds:g} s per contender, workload and number in flight",
        "machine": f"{os.cpu_count()} cores, {memory_gib:.0f} GB, Linux {platform.release()}, {platform.machine()}",
        "user": "root" if os.geteuid() == 0 else "a plain user",
        "Python": f"{platform.python_version()} (host), {_ask_versions(python)} (guests and all contenders)",
        "bubblewrap": _ask([bubblewrap, "--version"]).split()[-1] if bubblewrap else "missing",
        "CPU from": meter.source,
        "others on the machine": f"used {others[len(others) // 2]:.0%} of it in the median measurement, "
        f"{others[-1]:.0%} in the worst; load at the end {os.getloadavg()[0]:.1f}",
    }


def _ask_versions(python: Path) -> str:
    code = "import numpy, pandas, platform\nprint(platform.python_version(), numpy.__version__, pandas.__version__)"
    version, numpy, pandas = _ask([str(python), "-c", code]).split()
    return f"{version}, numpy {numpy}, pandas {pandas}"


def _ask(command: list[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    main()
