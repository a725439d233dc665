"""`belljar bench`: measures latency and throughput of small programs on this machine, in half a minute.

The measurements are interleaved, so that a noisy neighbour affects all of them alike: compare the ratios. The published
numbers come from the larger benchmarks in the repository's `bench/`.

`belljar bench http URL` puts a server under load and charts its latency and throughput. It works with the native API
and with X-Master's (`/execute`). One process sends requests over many connections and checks every response. It is
written in Python, so beyond a few thousand requests per second it becomes the bottleneck; `bench/pressure.sh` uses wrk
instead.
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
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from belljar.aio import cancel_all
from belljar.assembly import prepare_environment
from belljar.contract.errors import CallerError, SandboxFault
from belljar.frontends.cli import terminal
from belljar.frontends.cli.options import define_json, define_walls, load_settings
from belljar.frontends.embedded.sandbox import AsyncSandbox
from belljar.settings import Settings

_HELLO = "print('hello')"
_IN_FLIGHT = 16
_ROUNDS = 5
_COLD = [sys.executable, "-I", "-S", "-c", _HELLO]
_CODE = "x = 5\nprint(x)"  # what a server is sent
_EXPECTED = "5\n"
_SLICES = 40
_BLOCKS = " ▁▂▃▄▅▆▇█"
_PERCENTILES = (50, 75, 90, 99)

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
    parser.add_argument(
        "url",
        metavar="URL",
        nargs="?",
        default="http://127.0.0.1:8000/v1/execute",
        help="where to send requests (default path: /v1/execute)",
    )
    parser.add_argument("--connections", metavar="N", type=int, default=100)
    parser.add_argument("--seconds", metavar="N", type=float, default=10.0)
    parser.add_argument("--session", metavar="ID", help="with X-Master's API: run everything in this session")
    parser.add_argument("--key", metavar="KEY", help="the API key of the server")
    parser.add_argument("--plot", metavar="FILE", help="also save a chart to this file (needs matplotlib)")
    parser.add_argument("--quick", action="store_true", help="do a tenth of the runs")
    parser.add_argument("--environment", metavar="NAME", default="default", help="guest environment to measure")
    define_json(parser)
    define_walls(parser)


def execute(options: argparse.Namespace) -> int:
    if options.what == "http":
        return _load_server(options)
    settings = load_settings(options)
    with terminal.progress() as report:
        prepare_environment(settings, options.environment, report)
        lines = asyncio.run(_measure(settings, options.environment, 100 if options.quick else 1000))
    if options.json:
        print(json.dumps({"lines": [line.as_json() for line in lines]}, indent=2))
    else:
        terminal.draw_table(terminal.console(), "hello world", list(_HEADS), list(_rows(lines)), numeric=True)
    return 0


# ---- a local sandbox

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
        await cancel_all(workers)
    line.total_seconds += time.perf_counter() - began


# ---- a server


@dataclass(slots=True, kw_only=True)
class Load:
    """The responses that arrived, with their times."""

    seconds: float
    connections: int
    answers: list[tuple[float, float]] = field(default_factory=list)  # (seconds since the start, latency in seconds)
    wrong: int = 0
    failed: int = 0

    def as_json(self) -> dict[str, Any]:
        taken = [each for _, each in self.answers]
        cuts = statistics.quantiles(taken, n=100) if len(taken) > 1 else (taken or [0.0]) * 99
        return {
            "connections": self.connections,
            "seconds": self.seconds,
            "answers": len(taken),
            "answers_per_second": len(taken) / self.seconds,
            "wrong": self.wrong,
            "failed": self.failed,
            **{f"p{each}_seconds": cuts[each - 1] for each in _PERCENTILES},
            "max_seconds": max(taken, default=0.0),
        }

    def rates(self) -> list[float]:
        """Responses per second in each of `_SLICES` equal intervals."""
        counts = [0] * _SLICES
        for moment, _ in self.answers:
            counts[min(_SLICES - 1, int(moment / self.seconds * _SLICES))] += 1
        return [count * _SLICES / self.seconds for count in counts]


def _load_server(options: argparse.Namespace) -> int:
    if options.connections < 1 or not options.seconds > 0:
        raise CallerError("--connections and --seconds must be greater than 0")
    load = asyncio.run(_apply_load(options))
    if options.json:
        print(json.dumps({**load.as_json(), "rates": load.rates()}, indent=2))
    else:
        _draw(load, options.url)
    if options.plot:
        _plot(load, options.url, Path(options.plot))
    if not load.answers:
        raise CallerError(f"no response from {options.url}; is the server running?")
    return 1 if load.wrong or load.failed else 0


async def _apply_load(options: argparse.Namespace) -> Load:
    load = Load(seconds=options.seconds, connections=options.connections)
    request, host, port = _build_request(options)
    began = time.perf_counter()
    workers = [_request_on(load, request, host, port, began) for _ in range(options.connections)]
    await asyncio.gather(*workers)
    return load


def _build_request(options: argparse.Namespace) -> tuple[bytes, str, int]:
    parts = urlsplit(options.url)
    if parts.scheme != "http" or not parts.hostname:
        raise CallerError(f"{options.url!r} is not an http:// URL")
    body: dict[str, str] = {"code": _CODE}
    if options.session:
        body["session_id"] = options.session
    content = json.dumps(body).encode()
    key = f"Authorization: Bearer {options.key}\r\n" if options.key else ""
    head = (
        f"POST {parts.path.rstrip('/') or '/v1/execute'} HTTP/1.1\r\nHost: {parts.netloc}\r\n"
        f"Content-Type: application/json\r\n{key}Content-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content, parts.hostname, parts.port or 80


async def _request_on(load: Load, request: bytes, host: str, port: int, began: float) -> None:
    """Send requests over one connection until the time is up or the connection breaks."""
    writer: asyncio.StreamWriter | None = None
    try:
        reader, writer = await asyncio.open_connection(host, port)
        while (sent := time.perf_counter()) - began < load.seconds:
            writer.write(request)
            answer = await _read_answer(reader)
            now = time.perf_counter()
            if now - began > load.seconds:
                break
            load.answers.append((now - began, now - sent))
            if answer.get("stdout", answer.get("output")) != _EXPECTED:
                load.wrong += 1
    except (OSError, ValueError, asyncio.IncompleteReadError):
        load.failed += 1
    finally:
        if writer is not None:
            writer.close()


async def _read_answer(reader: asyncio.StreamReader) -> dict[str, Any]:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    size = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0] or b"0")
    answer = json.loads(await reader.readexactly(size))
    return answer if isinstance(answer, dict) else {}


def _draw(load: Load, url: str) -> None:
    seen = load.as_json()
    rows = [
        ("answers per second", f"{seen['answers_per_second']:.0f}"),
        *((f"p{each} ms", f"{seen[f'p{each}_seconds'] * 1e3:.1f}") for each in _PERCENTILES),
        ("slowest ms", f"{seen['max_seconds'] * 1e3:.1f}"),
        ("answers / wrong / connections lost", f"{seen['answers']} / {seen['wrong']} / {seen['failed']}"),
    ]
    title = f"{url}, {load.connections} connections, {load.seconds:g} s"
    terminal.draw_table(terminal.console(), title, ["", ""], [list(row) for row in rows])
    rates = load.rates()
    print(f"\nanswers per second, over the {load.seconds:g} s (to {max(rates):.0f})\n{_bars(rates)}")
    counts, edges = _histogram([taken * 1e3 for _, taken in load.answers])
    print(f"\nlatency, {edges[0]:.1f} to {edges[1]:.1f} ms\n{_bars(counts)}")


def _bars(values: list[float]) -> str:
    most = max(values, default=0.0) or 1.0
    return "".join(_BLOCKS[min(8, round(each / most * 8))] for each in values)


def _histogram(values: list[float]) -> tuple[list[float], tuple[float, float]]:
    low, high = min(values, default=0.0), max(values, default=1.0)
    counts = [0.0] * _SLICES
    for each in values:
        counts[min(_SLICES - 1, int((each - low) / (high - low or 1.0) * _SLICES))] += 1
    return counts, (low, high)


def _plot(load: Load, url: str, path: Path) -> None:
    try:
        import matplotlib
    except ImportError as error:
        raise CallerError("--plot needs matplotlib: pip install matplotlib") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (above, below) = pyplot.subplots(2, 1, figsize=(8, 6))
    above.plot([load.seconds * (each + 0.5) / _SLICES for each in range(_SLICES)], load.rates())
    above.set(xlabel="seconds", ylabel="answers per second", title=f"{url}, {load.connections} connections")
    above.set_ylim(bottom=0)
    below.hist([taken * 1e3 for _, taken in load.answers], bins=60)
    below.set(xlabel="latency in ms", ylabel="answers")
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
