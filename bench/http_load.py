"""A long load on `belljar serve`: 200,000 requests or an hour, whichever is first; every answer is checked.

    python bench/http_load.py [--requests 200000] [--seconds 3600] [--connections 32] [--output-dir docs]

Every minute the load pauses until all is quiet; what is counted then is exact: memory, descriptors, processes and
cgroups of the server and everything below it. Between pauses the latency of small programs is kept for its p99. Fails
if an answer was wrong, if anything grew, or if anything is left after the server has ended.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from meters import descendants, members, memory_of
from report import replace_between_markers
from soak import count_cgroups, descriptors_of, judge_growth

_DOCS = Path(__file__).resolve().parent.parent / "docs"
_JAIL_SECONDS = 0.2  # then idle jails of a burst are destroyed: counts must not depend on what ran before
_QUIET_SECONDS = 0.5
_QUIET_SECONDS_MAX = 15.0
_MISTAKES_KEPT = 20
_JUDGED_REQUESTS = 5_000  # fewer samples cannot show growth
_PUBLISHED_REQUESTS = 50_000  # shorter runs are not published in docs/
_LASTING = ("host", "runner", "keeper", "warden", "zygote")  # they stay from run to run

#: What is counted, and by how much the last quarter may exceed the first: absolute, and as a share.
ALLOWED_GROWTH = {
    "server MB": (4.0, 0.06),
    "runners MB": (4.0, 0.06),
    "service Pss MB": (10.0, 0.06),
    "descriptors": (6.0, 0.05),
    "processes": (3.0, 0.05),
    "cgroup directories": (4.0, 0.06),
    "p99 ms": (25.0, 0.5),
}


class Answer(NamedTuple):
    """A complete response."""

    status: int
    body: bytes

    @property
    def tree(self) -> Any:
        """The JSON it holds."""
        return json.loads(self.body)


class Wire:
    """A persistent connection with little overhead, so that the client is not what is measured."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, method: str, path: str, body: Any = None, accept: str = "application/json") -> Answer:
        """Send one request and return the response."""
        await self.send(method, path, body, accept)
        assert self._streams is not None
        reader, _ = self._streams
        head = await reader.readuntil(b"\r\n\r\n")
        lines = head.decode("latin-1").lower().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines[1:] if ": " in line)
        if "content-length" in headers:
            content = await reader.readexactly(int(headers["content-length"]))
        else:
            content = await self._read_chunks(reader)
        if headers.get("connection") == "close":
            self.close()
        return Answer(int(lines[0].split()[1]), content)

    async def send(self, method: str, path: str, body: Any, accept: str) -> None:
        """A request whose answer may never be read."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        content = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\nContent-Type: application/json\r\n"
        self._streams[1].write(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
        await self._streams[1].drain()

    @staticmethod
    async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
        content = b""
        while size := int(await reader.readuntil(b"\r\n"), 16):
            content += await reader.readexactly(size)
            await reader.readexactly(2)
        await reader.readexactly(2)
        return content

    def close(self) -> None:
        """Close the connection."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


# ---- requests and their expected responses


async def ask_small(wire: Wire, number: int) -> bool:
    answer = await wire.ask("POST", "/v1/execute", {"code": f"x = {number}\nprint(x)"})
    return answer.status == 200 and answer.tree["stdout"] == f"{number}\n"


async def ask_failing(wire: Wire, number: int) -> bool:
    answer = await wire.ask("POST", "/v1/execute", {"code": f"{number} / 0"})
    return answer.tree["status"] == "failed" and answer.tree["error"]["type"] == "ZeroDivisionError"


async def ask_stream(wire: Wire, number: int) -> bool:
    body = {"code": f"for n in range(5): print({number}, n, flush=True)"}
    answer = await wire.ask("POST", "/v1/execute", body, "application/x-ndjson")
    events = [json.loads(line) for line in answer.body.splitlines()]
    text = "".join(each["text"] for each in events if each["event"] == "stdout")
    return text == "".join(f"{number} {n}\n" for n in range(5)) and events[-1]["status"] == "ok"


async def ask_batch(wire: Wire, number: int) -> bool:
    cases = [{"stdin": str(number + n), "expected_stdout": f"{2 * (number + n)}\n"} for n in range(5)]
    answer = await wire.ask("POST", "/v1/batch", {"code": "print(2 * int(input()))", "cases": cases})
    return answer.tree["passed"] == 5


async def ask_dialect(wire: Wire, number: int) -> bool:
    answer = await wire.ask("POST", "/py_exec", {"code": f"print({number})", "timeout": 10})
    return answer.body == f"0\n{number}\n".encode()


async def ask_numpy(wire: Wire, number: int) -> bool:
    answer = await wire.ask("POST", "/v1/execute", {"code": f"import numpy\nprint(numpy.full(3, {number}).sum())"})
    return answer.tree["stdout"] == f"{3 * number}\n"


async def ask_too_slow(wire: Wire, number: int) -> bool:
    answer = await wire.ask("POST", "/v1/execute", {"code": "import time\ntime.sleep(60)", "timeout": 0.3})
    return answer.tree["status"] == "timed_out"


async def ask_too_large(wire: Wire, number: int) -> bool:
    body = {"code": "a = [b'x' * (1 << 20) for _ in range(4000)]", "limits": {"memory_mb": 64}}
    return (await wire.ask("POST", "/v1/execute", body)).tree["status"] == "out_of_memory"


async def ask_and_leave(wire: Wire, number: int) -> bool:
    """Expect no response; the next pause shows that nothing is left behind."""
    await wire.send("POST", "/v1/execute", {"code": "import time\ntime.sleep(60)"}, "application/json")
    await asyncio.sleep(0.05)
    wire.close()
    return True


async def ask_nonsense(wire: Wire, number: int) -> bool:
    wrong = await wire.ask("POST", "/v1/execute", {"code": "1", "colour": "red"})
    gone = await wire.ask("GET", f"/nothing/{number}")
    return (wrong.status, gone.status) == (422, 404)


async def ask_health(wire: Wire, number: int) -> bool:
    answer = await wire.ask("GET", "/health")
    return answer.status == 200 and answer.tree["status"] == "ok"


Ask = Callable[[Wire, int], Awaitable[bool]]

#: How many of a thousand requests.
MIX: dict[Ask, int] = {
    ask_small: 620,
    ask_failing: 90,
    ask_stream: 80,
    ask_batch: 40,
    ask_dialect: 70,
    ask_numpy: 15,
    ask_too_slow: 4,
    ask_too_large: 3,
    ask_and_leave: 18,
    ask_nonsense: 30,
    ask_health: 30,
}


class Load:
    """One run."""

    def __init__(self, options: argparse.Namespace, server: subprocess.Popen[bytes], port: int, parent: str) -> None:
        self.options, self.server, self.port, self.parent = options, server, port, parent
        self.samples: list[dict[str, float]] = []
        self.asked: Counter[str] = Counter()
        self.mistakes: list[str] = []
        self.mistake_count = 0
        self.done = 0
        self.latencies: list[float] = []
        self.health_seconds_max = 0.0

    async def run(self) -> None:
        """The whole load with its pauses."""
        kinds, weights = zip(*MIX.items(), strict=True)
        choose = random.Random(self.options.seed).choices
        numbers = itertools.count(1)
        began = time.monotonic()
        wires = [Wire(self.port) for _ in range(self.options.connections)]
        while self.done < self.options.requests and time.monotonic() - began < self.options.seconds:
            pause_at = time.monotonic() + self.options.sample_seconds
            part_began, part_done = time.monotonic(), self.done

            async def work(wire: Wire, until: float) -> None:
                while time.monotonic() < until and self.done < self.options.requests:
                    self.done += 1
                    await self._ask(wire, choose(kinds, weights)[0], next(numbers))

            await asyncio.gather(*(work(wire, pause_at) for wire in wires))
            rate = (self.done - part_done) / (time.monotonic() - part_began)
            await self._settle()
            self.samples.append(self._sample(time.monotonic() - began, rate))
            shown = ", ".join(f"{name} {value:.0f}" for name, value in self.samples[-1].items())
            print(f"{shown}; {self.mistake_count} wrong", file=sys.stderr)
        for wire in wires:
            wire.close()

    async def _ask(self, wire: Wire, kind: Ask, number: int) -> None:
        name = getattr(kind, "__name__", "?")
        self.asked[name] += 1
        began = time.monotonic()
        try:
            async with asyncio.timeout(120):
                right = await kind(wire, number)
            what = "a wrong answer"
        except (OSError, TimeoutError, ValueError, LookupError, TypeError, asyncio.IncompleteReadError) as error:
            right, what = False, repr(error)
            wire.close()
        seconds = time.monotonic() - began
        if kind is ask_small:
            self.latencies.append(seconds)
        elif kind is ask_health:
            self.health_seconds_max = max(self.health_seconds_max, seconds)
        if not right:
            self.mistake_count += 1
            if len(self.mistakes) < _MISTAKES_KEPT:
                self.mistakes.append(f"{name} {number}: {what}")

    async def _settle(self) -> None:
        """Wait until the number of processes is stable: abandoned programs have ended."""
        before, since, deadline = -1, time.monotonic(), time.monotonic() + _QUIET_SECONDS_MAX
        while time.monotonic() < deadline:
            now = len(descendants(self.server.pid))
            if now != before:
                before, since = now, time.monotonic()
            elif time.monotonic() - since > _QUIET_SECONDS:
                return
            await asyncio.sleep(_QUIET_SECONDS / 5)

    def _sample(self, seconds: float, rate: float) -> dict[str, float]:
        found = members(self.server.pid)
        everyone = 0.0
        for member in found:
            with contextlib.suppress(OSError):
                everyone += memory_of(member.pid).proportional / 2**20
        ordered, self.latencies = sorted(self.latencies) or [0.0], []
        lasting = [each.pid for each in found if each.role.split()[0] in _LASTING]
        runners = (memory_of(each.pid).anonymous for each in found if each.role == "runner")
        return {
            "runs": float(self.done),
            "seconds": seconds,
            "rate": rate,
            "p50 ms": 1000 * ordered[len(ordered) // 2],
            "p99 ms": 1000 * ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))],
            "server MB": memory_of(self.server.pid).anonymous / 2**20,
            "runners MB": sum(runners) / 2**20,
            "service Pss MB": everyone,
            "descriptors": float(sum(descriptors_of(pid) for pid in lasting)),
            "processes": float(1 + len(descendants(self.server.pid))),
            "cgroup directories": float(count_cgroups(self.parent)),
            "load": os.getloadavg()[0],
        }


def main() -> int:
    """Load, report, and fail if anything was wrong, grew or stayed."""
    options = _read_options()
    parent = f"belljar-load-{os.getpid()}"
    with tempfile.TemporaryDirectory(prefix="belljar-load-") as directory:
        environ = {
            "BELLJAR_RUNTIME_DIR": f"{directory}/run",
            "BELLJAR_SERVER_KEYS_FILE": f"{directory}/keys.json",
            "BELLJAR_JAIL_CGROUP_PARENT": parent,
            "BELLJAR_SERVER_LOG_FORMAT": "json",
            "BELLJAR_POOL_JAIL_SECONDS": str(_JAIL_SECONDS),
        }
        log = Path(directory, "log")
        with log.open("wb") as lines:
            command = [sys.executable, "-m", "belljar", "serve", "--port", "0"]
            server = subprocess.Popen(command, env={**os.environ, **environ}, stderr=lines)
        try:
            load = Load(options, server, _wait_for_port(server, log), parent)
            asyncio.run(load.run())
            below = {pid: _started_at(pid) for pid in descendants(server.pid)}
        finally:
            server.send_signal(signal.SIGTERM)
            exit_code = server.wait(60)
        left = {
            "processes": sum(_started_at(pid) == started != "" for pid, started in below.items()),
            "cgroup directories": count_cgroups(parent),
            "mounts": _count_own_mounts(directory),
        }
    report = _report(load, exit_code, {name: count for name, count in left.items() if count})
    print(_markdown(report))
    output_dir = options.output_dir or (
        _DOCS if load.done >= _PUBLISHED_REQUESTS else Path(tempfile.mkdtemp(prefix="belljar-load-"))
    )
    for path in _publish(report, output_dir):
        print(f"wrote {path}", file=sys.stderr)
    return 0 if report["passed"] else 1


def _started_at(pid: int) -> str:
    """The start time of a process, because its pid may be reused; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


def _count_own_mounts(directory: str) -> int:
    """Belljar's mounts that are visible here; mounts of other programs do not count."""
    count = 0
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        place, source = line.split()[4], line.partition(" - ")[2].split()[1]
        count += place.startswith((directory, "/work")) or source in ("belljar", "scratch")
    return count


def _read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=200_000)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--sample-seconds", type=float, default=60.0, help="how often to pause and count")
    parser.add_argument("--seed", type=int, default=1, help="seed of the order of requests")
    parser.add_argument("--output-dir", type=Path, help="where to write (docs/; for a short run a new temporary)")
    return parser.parse_args()


def _wait_for_port(server: subprocess.Popen[bytes], log: Path) -> int:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        for line in log.read_text().splitlines():
            with contextlib.suppress(ValueError):
                told = json.loads(line)
                if told["event"] == "listening":
                    return int(told["url"].rpartition(":")[2])
        assert server.poll() is None, log.read_text()
        time.sleep(0.1)
    raise AssertionError(f"the server does not listen: {log.read_text()}")


def _report(load: Load, exit_code: int, left: dict[str, int]) -> dict[str, Any]:
    growth = judge_growth(load.samples, load.done, ALLOWED_GROWTH) if len(load.samples) >= 2 else {}
    is_judged = load.done >= _JUDGED_REQUESTS
    grew = is_judged and any(each["grew"] for each in growth.values())
    return {
        "when": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "requests": load.done,
        "connections": load.options.connections,
        "wall_seconds": load.samples[-1]["seconds"],
        "asked": dict(load.asked.most_common()),
        "health_ms_max": 1000 * load.health_seconds_max,
        "mistake_count": load.mistake_count,
        "mistakes": load.mistakes,
        "exit_code": exit_code,
        "left_behind": left,
        "growth": growth,
        "growth_is_judged": is_judged,
        "samples": load.samples,
        "passed": not (load.mistake_count or left or exit_code or grew),
    }


def _markdown(report: dict[str, Any]) -> str:
    minutes = report["wall_seconds"] / 60
    asked = ", ".join(f"{count:,} {name.removeprefix('ask_')}" for name, count in report["asked"].items())
    lines = [
        f"{report['requests']:,} requests over {report['connections']} connections, {report['when']}, {minutes:.0f} "
        f"minutes with the pauses for counting: {asked}. Wrong answers: {report['mistake_count']}. Slowest `/health`: "
        f"{report['health_ms_max']:.0f} ms. Left behind after the server ended: {report['left_behind'] or 'nothing'}.",
        "",
        "| counted while quiet, once a minute | first quarter | last quarter | slope per 10,000 requests | verdict |",
        "| --- | ---: | ---: | ---: | --- |",
    ]
    for name, each in report["growth"].items():
        verdict = ("GREW" if each["grew"] else "flat") if report["growth_is_judged"] else "too short to tell"
        lines.append(f"| {name} | {each['first']:.1f} | {each['last']:.1f} | {each['per_10k_runs']:+.2f} | {verdict} |")
    return "\n".join(
        [*lines, *(f"\n**wrong:** {each}" for each in report["mistakes"]), "", "![the load](http-load.png)"]
    )


def _publish(report: dict[str, Any], directory: Path) -> list[Path]:
    directory.mkdir(parents=True, exist_ok=True)
    page, picture, numbers = directory / "performance.md", directory / "http-load.png", directory / "http-load.json"
    replace_between_markers(page, "http-load", _markdown(report))
    numbers.write_text(json.dumps(report, indent=1) + "\n")
    _draw(report, picture)
    return [page, picture, numbers]


def _draw(report: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    pyplot.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    samples = report["samples"]
    minutes = [sample["seconds"] / 60 for sample in samples]
    panels = [
        ("requests per second", ["rate"]),
        ("ms, small programs", ["p50 ms", "p99 ms"]),
        ("memory in MB", ["service Pss MB", "server MB", "runners MB"]),
        ("descriptors, processes, cgroup directories", ["descriptors", "processes", "cgroup directories"]),
    ]
    figure, grid = pyplot.subplots(2, 2, figsize=(11, 6.5), layout="constrained", sharex=True)
    for axes, (title, names) in zip(grid.flat, panels, strict=True):
        for name in names:
            axes.plot(
                minutes, [sample[name] for sample in samples], linewidth=1.4, label=name, marker=".", markersize=3
            )
        axes.set_title(title, loc="left", fontsize=9.5)
        axes.set_ylim(0, 1.3 * max(1.0, *(sample[name] for sample in samples for name in names)))
        axes.grid(color="#e3e7ea")
        if len(names) > 1:
            axes.legend(frameon=False, fontsize=8, ncols=2, loc="upper right")
    for axes in grid[1]:
        axes.set_xlabel("minutes")
    title = f"Load on the HTTP server: {report['requests']:,} requests, {report['when']}"
    figure.suptitle(title, x=0.01, ha="left", weight="bold")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


if __name__ == "__main__":
    sys.exit(main())
