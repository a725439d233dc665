"""`belljar bench`: measures latency and throughput of small programs on this machine, in half a minute.

The measurements are interleaved, so that a noisy neighbour affects all of them alike: compare the ratios. The published
numbers come from the larger benchmarks in the repository's `bench/`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from belljar.assembly import prepare_environment
from belljar.contract.errors import SandboxFault
from belljar.frontends.cli import terminal
from belljar.frontends.cli.benchmark import http
from belljar.frontends.cli.options import define_json, define_walls, load_settings
from belljar.frontends.embedded.sandbox import AsyncSandbox
from belljar.settings import Settings

_HELLO = "print('hello')"
_IN_FLIGHT = 16
_ROUNDS = 5
_COLD = [sys.executable, "-I", "-S", "-c", _HELLO]

#: A small process that forks, as the zygote does: the cost of a run before isolation and program.
_FORK = """
import json, os, sys, time
taken = []
for _ in range(int(sys.argv[1])):
    began = time.perf_counter()
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    taken.append(time.perf_counter() - began)
print(json.dumps(taken))
"""


@dataclass(slots=True, kw_only=True)
class Measurement:
    name: str
    seconds: list[float] = field(default_factory=list)  # of each run
    total_seconds: float = 0.0  # wall-clock time of all runs, including parallel ones

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "runs": len(self.seconds),
            "p50_seconds": statistics.median(self.seconds),
            "p99_seconds": statistics.quantiles(self.seconds, n=100)[98],
            "runs_per_second": len(self.seconds) / self.total_seconds,
        }


def define(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what",
        nargs="?",
        choices=("local", "http"),
        default="local",
        help="what to measure: a local sandbox (default) or a running HTTP server",
    )
    http.define(parser)
    parser.add_argument("--quick", action="store_true", help="do a tenth of the runs")
    parser.add_argument("--environment", metavar="NAME", default="default", help="guest environment to measure")
    define_json(parser)
    define_walls(parser)


def execute(options: argparse.Namespace) -> int:
    if options.what == "http":
        return http.execute(options)
    settings = load_settings(options)
    with terminal.progress() as report:
        prepare_environment(settings, options.environment, report)
        lines = asyncio.run(_measure(settings, options.environment, 100 if options.quick else 1000))
    if options.json:
        print(json.dumps({"lines": [line.as_json() for line in lines]}, indent=2))
    else:
        terminal.draw_table(terminal.console(), "hello world", list(_HEADS), list(_rows(lines)), numeric=True)
    return 0


_HEADS = ("", "p50 ms", "p99 ms", "runs/s", "rate / fork's")


def _rows(lines: list[Measurement]) -> Iterator[tuple[str, ...]]:
    seen = [line.as_json() for line in lines]
    fork_rate = seen[0]["runs_per_second"]
    for each in seen:
        milliseconds = (f"{each[name] * 1e3:.2f}" for name in ("p50_seconds", "p99_seconds"))
        rate = each["runs_per_second"]
        yield each["name"], *milliseconds, f"{rate:.0f}", f"{rate / fork_rate:.2f}"


async def _measure(settings: Settings, environment: str, runs: int) -> list[Measurement]:
    fork = Measurement(name="bare fork of a Python, no walls")
    cold = Measurement(name="cold start: python -I -S -c")
    one = Measurement(name="belljar, one at a time")
    many = Measurement(name=f"belljar, {_IN_FLIGHT} in flight")
    async with AsyncSandbox(settings=settings) as box:
        await _run_parallel(box, environment, Measurement(name=""), 2 * _IN_FLIGHT, _IN_FLIGHT)  # warms the caches
        for _ in range(_ROUNDS):
            await asyncio.to_thread(_fork_bare, fork, runs // _ROUNDS)
            await asyncio.to_thread(_start_cold, cold, max(4, runs // _ROUNDS // 10))
            await _run_parallel(box, environment, one, runs // _ROUNDS, 1)
            await _run_parallel(box, environment, many, 2 * runs // _ROUNDS, _IN_FLIGHT)
    return [fork, cold, one, many]


def _fork_bare(line: Measurement, runs: int) -> None:
    done = subprocess.run([*_COLD[:-1], _FORK, str(runs)], capture_output=True, check=True, stdin=subprocess.DEVNULL)
    taken = json.loads(done.stdout)
    line.seconds += taken
    line.total_seconds += sum(taken)


def _start_cold(line: Measurement, runs: int) -> None:
    for _ in range(runs):
        began = time.perf_counter()
        subprocess.run(_COLD, capture_output=True, check=True, stdin=subprocess.DEVNULL)
        line.seconds.append(time.perf_counter() - began)
        line.total_seconds += line.seconds[-1]


async def _run_parallel(box: AsyncSandbox, environment: str, line: Measurement, runs: int, in_flight: int) -> None:
    left = iter(range(runs))

    async def work() -> None:
        for _ in left:
            began = time.perf_counter()
            outcome = await box.run(_HELLO, environment=environment)
            line.seconds.append(time.perf_counter() - began)
            if outcome.stdout != "hello\n":
                raise SandboxFault(f"a program failed during the benchmark: {outcome}")

    began = time.perf_counter()
    workers = [asyncio.create_task(work()) for _ in range(in_flight)]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    line.total_seconds += time.perf_counter() - began
