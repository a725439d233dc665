"""What HTTP costs: `belljar serve` under wrk, beside a server that does nothing and others that run programs.

Not called http.py: a script's own directory comes first on the module search path, and `http` is in the standard
library.

    python bench/http_server.py [--seconds 5] [--rounds 3] [--connections 100] [--output-dir docs] [--quick]

Writes the part of performance.md between its markers, http-performance.png and http-performance.json. All servers are
up during the whole run, rounds are interleaved, the median counts, and every answer is checked.
CPU is that of the server's own process: the zygote and the guests are others. So are its runners, whose part is told
beside it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import wrk
from meters import descendants, is_runner
from report import replace_between_markers

_DOCS = Path(__file__).resolve().parent.parent / "docs"

CODE = "x=5\nprint(x)"
BODY = json.dumps({"code": CODE})
BATCH_EXECUTIONS = 1000
OURS = "belljar"
_NUMBERS = "http-performance.json"
TARGETS = {"cpu_ms": 0.8, "batch_cpu_ms": 0.3, "of_engine": 0.8}

_ECHO = """
import sys, uvicorn
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route
ANSWER = b'{"id":"x_0","language":"python","status":"ok","exit_code":0,"stdout":"5\\\\n","stderr":""}'
async def execute(request):
    await request.json()
    return Response(ANSWER, media_type="application/json")
app = Starlette(routes=[Route("/v1/execute", execute, methods=["POST"])])
uvicorn.run(app, port=int(sys.argv[1]), log_level="error", access_log=False)
"""

_BWRAP = """
import asyncio, json, sys, uvicorn
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route
JAIL = "bwrap --ro-bind / / --unshare-all --die-with-parent --tmpfs /tmp /usr/bin/python3 -I -c".split()
turns = asyncio.Semaphore(8)
async def execute(request):
    async with turns:
        run = await asyncio.create_subprocess_exec(*JAIL, (await request.json())["code"], stdout=-1, stderr=-1)
        out, err = await run.communicate()
    answer = {"stdout": out.decode(), "stderr": err.decode(), "exit_code": run.returncode}
    return Response(json.dumps(answer, separators=(",", ":")), media_type="application/json")
app = Starlette(routes=[Route("/v1/execute", execute, methods=["POST"])])
uvicorn.run(app, port=int(sys.argv[1]), log_level="error", access_log=False)
"""

#: The peer from PyPI: Jupyter's own HTTP front, which runs a cell for each request. No walls, one kernel for all.
_GATEWAY_CELL = """# POST /v1/execute
import contextlib, io, json
_out = io.StringIO()
with contextlib.redirect_stdout(_out):
    exec(json.loads(REQUEST)["body"]["code"], {})
print(json.dumps({"stdout": _out.getvalue()}, separators=(",", ":")))
"""
_GATEWAY_NOTEBOOK = {
    "cells": [
        {
            "cell_type": "code",
            "source": _GATEWAY_CELL,
            "metadata": {},
            "outputs": [],
            "execution_count": None,
            "id": "a",
        }
    ],
    "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
    "nbformat": 4,
    "nbformat_minor": 5,
}


@dataclass(kw_only=True)
class Server:
    """A server to compare."""

    name: str
    process: subprocess.Popen[bytes]
    port: int

    @property
    def url(self) -> str:
        """The path that programs are sent to."""
        return f"http://127.0.0.1:{self.port}/v1/execute"

    def cpu_seconds(self) -> float:
        """CPU seconds of this process alone since its start."""
        return _cpu_seconds(self.process.pid)

    def runners_cpu_seconds(self) -> float:
        """CPU seconds of the processes that do part of its work."""
        return sum(map(_cpu_seconds, filter(is_runner, descendants(self.process.pid))))


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@dataclass(kw_only=True)
class Measured:
    """One round with one server."""

    requests_per_second: float
    cpu_ms: float
    runners_cpu_ms: float
    p50_ms: float
    p99_ms: float
    wrong: int


def main() -> int:
    """Measure, print, compare with the targets; fail if a response was wrong."""
    options = _read_options()
    if not wrk.is_here():
        return 3
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers = [stack.enter_context(start(*each)) for each in _contenders(scratch)]
        rounds: dict[str, list[Measured]] = {server.name: [] for server in servers}
        batches, engine = [], []
        for number in range(options.rounds):
            if number % 2:  # the two servers to compare follow each other, in alternating order
                engine.append(asyncio.run(run_engine(options.seconds, options.connections)))
            for server in servers:
                rounds[server.name].append(load(server, options))
                print(f"round {number + 1}: {server.name}: {rounds[server.name][-1]}", file=sys.stderr)
                if len(engine) == number:
                    engine.append(asyncio.run(run_engine(options.seconds, options.connections)))
            batches.append(run_batch(servers[0]))
    report = summarise(rounds, batches, engine, options)
    print(markdown(report))
    directory = options.output_dir or (Path(tempfile.mkdtemp(prefix="belljar-http-")) if options.quick else _DOCS)
    for path in publish(report, directory):
        print(f"wrote {path}", file=sys.stderr)
    return 1 if any(each["wrong"] for each in report["servers"].values()) else 0


def _read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--connections", type=int, default=100)
    parser.add_argument("--output-dir", type=Path, help="where to write (docs/; with --quick a new temporary)")
    parser.add_argument("--quick", action="store_true", help="one second each: proves that it works, measures nothing")
    options = parser.parse_args()
    if options.quick:
        options.seconds, options.rounds, options.connections = 1, 1, 10
    return options


def _contenders(scratch: Path) -> Iterator[tuple[str, list[str]]]:
    """Names and commands; {port} is filled in."""
    yield OURS, [sys.executable, "-m", "belljar", "serve", "--port", "{port}"]
    yield "starlette echo (runs nothing)", [sys.executable, "-c", _ECHO, "{port}"]
    if shutil.which("bwrap"):
        yield "bwrap + python, ten lines", [sys.executable, "-c", _BWRAP, "{port}"]
    else:
        print("!!! bwrap is not installed and NOT compared", file=sys.stderr)
    if importlib.util.find_spec("kernel_gateway") and importlib.util.find_spec("ipykernel"):
        notebook = scratch / "execute.ipynb"
        notebook.write_text(json.dumps(_GATEWAY_NOTEBOOK))
        words = ["api=kernel_gateway.notebook_http", f"seed_uri={notebook}", "ip=127.0.0.1", "port={port}"]
        flags = [f"--KernelGatewayApp.{word}" for word in words]
        yield "jupyter kernel gateway (no walls)", [sys.executable, "-m", "kernel_gateway", *flags]
    else:
        print("!!! the peer from PyPI is NOT compared; pip install 'belljar[peers]'", file=sys.stderr)


@contextlib.contextmanager
def start(name: str, command: list[str]) -> Iterator[Server]:
    """Start one server on a free port and wait until it responds correctly."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as runtime:
        environ = {"BELLJAR_RUNTIME_DIR": f"{runtime}/run", "BELLJAR_SERVER_KEYS_FILE": f"{runtime}/keys.json"}
        filled = [word.replace("{port}", str(port)) if "port" in word else word for word in command]
        process = subprocess.Popen(
            filled, env={**os.environ, **environ}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        server = Server(name=name, process=process, port=port)
        try:
            _wait_until_right(server)
            yield server
        finally:
            process.terminate()
            process.wait(60)


def _wait_until_right(server: Server) -> None:
    deadline = time.monotonic() + 120
    while True:
        try:
            if '"stdout":"5\\n"' in post(server.url, BODY.encode()):
                return
        except OSError:
            assert server.process.poll() is None, f"{server.name} ended"
        assert time.monotonic() < deadline, f"{server.name} does not answer rightly"
        time.sleep(0.1)


def post(url: str, body: bytes) -> str:
    """Send JSON and return the response."""
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as response:
        text: str = response.read().decode()
    return text


def load(server: Server, options: argparse.Namespace) -> Measured:
    """One round of wrk."""
    before, runners_before = server.cpu_seconds(), server.runners_cpu_seconds()
    asked = [("/v1/execute", BODY)]
    seen = wrk.press(server.port, asked, '"stdout":"5\\n"', options.connections, options.seconds)
    return Measured(
        requests_per_second=seen.per_second,
        cpu_ms=1000 * (server.cpu_seconds() - before) / max(seen.requests, 1),
        runners_cpu_ms=1000 * (server.runners_cpu_seconds() - runners_before) / max(seen.requests, 1),
        p50_ms=seen.p50_ms,
        p99_ms=seen.p99_ms,
        wrong=seen.wrong,
    )


def run_batch(server: Server) -> dict[str, float]:
    """A thousand executions in one request."""
    body = json.dumps({"executions": [{"code": CODE}] * BATCH_EXECUTIONS}).encode()
    before, runners_before, began = server.cpu_seconds(), server.runners_cpu_seconds(), time.monotonic()
    answer = json.loads(post(server.url.replace("execute", "batch"), body))
    seconds, cpu_seconds = time.monotonic() - began, server.cpu_seconds() - before
    assert all(result["stdout"] == "5\n" for result in answer["results"]), "a wrong answer in the batch"
    assert answer["passed"] == BATCH_EXECUTIONS
    runners_cpu_seconds = server.runners_cpu_seconds() - runners_before
    return {
        "per_second": BATCH_EXECUTIONS / seconds,
        "cpu_ms": 1000 * cpu_seconds / BATCH_EXECUTIONS,
        "runners_cpu_ms": 1000 * runners_cpu_seconds / BATCH_EXECUTIONS,
    }


async def run_engine(seconds: float, width: int) -> dict[str, float]:
    """The same program without HTTP, as many at a time."""
    from belljar.assembly import build_engine
    from belljar.contract.request import ExecutionRequest
    from belljar.engine.admission.request import admit
    from belljar.settings import load as load_settings

    with tempfile.TemporaryDirectory() as runtime:
        settings = load_settings(flags={"runtime_dir": f"{runtime}/run"})
        engine = build_engine(settings)
        await engine.open()
        try:
            execution = admit(settings, ExecutionRequest(CODE))
            await engine.run(execution)
            ends, count = time.monotonic() + seconds, 0

            async def work() -> None:
                nonlocal count
                while time.monotonic() < ends:
                    outcome = await engine.run(execution)
                    assert outcome.stdout == "5\n"
                    count += 1

            before, began = time.process_time(), time.monotonic()
            await asyncio.gather(*(work() for _ in range(width)))
            passed = time.monotonic() - began
            return {"per_second": count / passed, "cpu_ms": 1000 * (time.process_time() - before) / count}
        finally:
            await engine.close(0.0)


def summarise(
    rounds: dict[str, list[Measured]],
    batches: list[dict[str, float]],
    engine: list[dict[str, float]],
    options: argparse.Namespace,
) -> dict[str, Any]:
    """Medians, and how they compare with the targets."""

    def middle(values: list[dict[str, Any]]) -> dict[str, Any]:
        return {name: round(statistics.median(each[name] for each in values), 3) for name in values[0]}

    servers = {name: middle([asdict(each) for each in measured]) for name, measured in rounds.items()}
    for name, measured in rounds.items():
        servers[name]["wrong"] = sum(each.wrong for each in measured)
    report: dict[str, Any] = {"servers": servers, "batch": middle(batches), "engine": middle(engine)}
    ours = servers[OURS]
    shares = [each.requests_per_second / alone["per_second"] for each, alone in zip(rounds[OURS], engine, strict=True)]
    report["of_engine"] = {"median": round(statistics.median(shares), 3), "rounds": [round(each, 3) for each in shares]}
    report["reached"] = {
        "cpu_ms": ours["cpu_ms"] <= TARGETS["cpu_ms"],
        "batch_cpu_ms": report["batch"]["cpu_ms"] <= TARGETS["batch_cpu_ms"],
        "of_engine": report["of_engine"]["median"] >= TARGETS["of_engine"],
    }
    report["when"] = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    report["rounds"], report["seconds"], report["connections"] = options.rounds, options.seconds, options.connections
    report["cores"], report["load_average"] = os.cpu_count(), os.getloadavg()[0]
    return report


def markdown(report: dict[str, Any]) -> str:
    """The tables."""
    lines = [
        "| server | requests/s | server CPU ms/request | its runners' | p50 ms | p99 ms | wrong answers |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, each in report["servers"].items():
        runners = f"{each['runners_cpu_ms']:.3f}" if each["runners_cpu_ms"] else ""
        numbers = f"{each['requests_per_second']:,.0f}", f"{each['cpu_ms']:.3f}", runners, f"{each['p50_ms']:.1f}"
        lines.append(f"| {name} | {' | '.join(numbers)} | {each['p99_ms']:.1f} | {each['wrong']:.0f} |")
    engine, batch = report["engine"], report["batch"]
    lines += [
        f"| the engine alone, without HTTP | {engine['per_second']:,.0f} | {engine['cpu_ms']:.3f} | | | | |",
        f"| {OURS}, a batch of {BATCH_EXECUTIONS:,} | {batch['per_second']:,.0f} | {batch['cpu_ms']:.3f} "
        f"| {batch['runners_cpu_ms']:.3f} | | | |",
        "",
        "| target | limit | measured | verdict |",
        "| --- | ---: | ---: | --- |",
    ]
    shares = report["of_engine"]["rounds"]
    rate = f"requests/s of the engine's own rate (rounds {min(shares):.2f}–{max(shares):.2f})"
    for name, what, limit, measured in (
        ("cpu_ms", "server CPU per request", f"≤ {TARGETS['cpu_ms']} ms", report["servers"][OURS]["cpu_ms"]),
        ("of_engine", rate, f"≥ {TARGETS['of_engine']} ×", report["of_engine"]["median"]),
        ("batch_cpu_ms", "server CPU per execution of a batch", f"≤ {TARGETS['batch_cpu_ms']} ms", batch["cpu_ms"]),
    ):
        lines.append(f"| {what} | {limit} | {measured:.3f} | {'met' if report['reached'][name] else 'NOT met'} |")
    lines += [
        "",
        f"`wrk`, {report['connections']} connections, medians of {report['rounds']} interleaved rounds of "
        f"{report['seconds']} s each, on {report['cores']} cores, {report['when']}; load average at the end "
        f"{report['load_average']:.1f}. The server's CPU is that of its own process; the runner, which reads the "
        f"programs' pipes and cgroups, has its own column. The engine alone does both in one process; it is measured "
        f"just before or after the server in each round, and the ratio is the median of these pairs.",
        "",
        "![requests per second of every server](http-performance.png)",
    ]
    return "\n".join(lines)


def publish(report: dict[str, Any], directory: Path) -> list[Path]:
    """Write performance.md (only what is between the markers), the picture and the numbers."""
    directory.mkdir(parents=True, exist_ok=True)
    page, picture, numbers = (directory / name for name in ("performance.md", "http-performance.png", _NUMBERS))
    replace_between_markers(page, "http", markdown(report))
    numbers.write_text(json.dumps(report, indent=1) + "\n")
    draw(report, picture)
    return [page, picture, numbers]


def draw(report: dict[str, Any], path: Path) -> None:
    """Rate and latency of each server, side by side."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    pyplot.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    servers = report["servers"]
    rates = {name: each["requests_per_second"] for name, each in servers.items()}
    rates |= {"the engine alone, without HTTP": report["engine"]["per_second"]}
    rates |= {f"{OURS}, a batch": report["batch"]["per_second"]}
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 3.4), layout="constrained")
    for axes, values, title in (
        (left, rates, "small programs per second"),
        (right, {name: each["p50_ms"] for name, each in servers.items()}, "ms, p50 (whisker: p99)"),
    ):
        names = list(values)[::-1]
        colours = ["#1b6ca8" if name.startswith(OURS) else "#b8c4cc" for name in names]
        axes.barh(names, [values[name] for name in names], color=colours, height=0.68)
        for place, name in enumerate(names):
            value, end = values[name], servers[name]["p99_ms"] if axes is right else values[name]
            axes.plot([value, end], [place, place], color="#5b6770", linewidth=1)
            text = f"{value:,.0f}" if axes is left else f"{value:.1f}"
            axes.annotate(text, (end, place), xytext=(4, 0), textcoords="offset points", va="center")
        axes.set_xscale("log")
        axes.set_title(title, loc="left", fontsize=9.5)
        axes.margins(x=0.25)
        axes.grid(axis="x", color="#e3e7ea")
        axes.set_axisbelow(True)
    title = f"HTTP: {report['connections']} connections, one run, {report['when']}"
    figure.suptitle(title, x=0.01, ha="left", weight="bold")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


if __name__ == "__main__":
    sys.exit(main())
