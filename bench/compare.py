"""Compare two checkouts of Belljar in one interleaved run: is the code after a change slower than the code before?

    python bench/compare.py BEFORE AFTER             # ten rounds, about ten minutes
    python bench/compare.py BEFORE AFTER --quick     # one small round: proves that it works, measures nothing

BEFORE and AFTER are repository directories with a `.venv` each, as `make setup` builds it. Both use the guest
environments of BELLJAR_STATE_DIR. Each checkout gets one worker process and one HTTP server, restarted every few
rounds. The two take turns in random order, so that a slow moment of the machine hits both. The table shows the
median of the ratios AFTER / BEFORE within each round, and their range. Only the public API and the command line are
used, so that checkouts with different module names can be compared.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_HELLO = "def add(a, b):\n    return a + b\n\n\nprint(add(2, 3))\n"
_FAULTS = "import resource\nprint(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)\n"
_BODY = json.dumps({"code": _HELLO})
_RIGHT = '"stdout":"5\\n"'
_IN_FLIGHT = 16
_SETTLE_SECONDS = 0.2
_ROUNDS_PER_START = (
    2  # processes have better and worse luck with their memory, by some percent, for as long as they live
)

#: What is measured: its unit, and whether more is better.
METRICS: dict[str, tuple[str, bool]] = {
    "hello, p50": ("ms", False),
    "hello, CPU per run, one in flight": ("ms", False),
    "hello, CPU per run, 16 in flight": ("ms", False),
    "hello, rate with 16 in flight": ("runs/s", True),
    "page faults of a guest": ("", False),
    "page faults of its zygote, per run": ("", False),
    "session: open, p50": ("ms", False),
    "session: cell, p50": ("ms", False),
    "session: branch, p50": ("ms", False),
    "HTTP, 16 connections": ("requests/s", True),
    "HTTP, CPU per request": ("ms", False),
    "idle service (Pss)": ("MB", False),
    "import belljar": ("ms", False),
    "belljar --help": ("ms", False),
}


def main() -> int:
    """Measure, print the table, and write the numbers if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--scale", type=float, default=1.0, help="how many runs in each round, as a factor")
    parser.add_argument("--quick", action="store_true", help="one small round")
    parser.add_argument("--output", type=Path, help="write every number to this file, as JSON")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.scale = 1, 0.05
    numbers = measure(options.before.resolve(), options.after.resolve(), options.rounds, options.scale)
    print(table(numbers))
    if options.output is not None:
        options.output.write_text(json.dumps(numbers, indent=1) + "\n")
    return 0


def measure(before: Path, after: Path, rounds: int, scale: float) -> list[dict[str, dict[str, float]]]:
    """One dictionary for each round, with the metrics of "before" and "after"."""
    found: list[dict[str, dict[str, float]]] = []
    while len(found) < rounds:
        with contextlib.ExitStack() as stack:
            sides = {name: stack.enter_context(_side(path)) for name, path in (("before", before), ("after", after))}
            for _ in range(min(_ROUNDS_PER_START, rounds - len(found))):
                names = list(sides)
                random.shuffle(names)
                measured: dict[str, dict[str, float]] = {"before": {}, "after": {}}
                for step in _STEPS:  # both sides take each step within seconds of each other
                    for name in names:
                        measured[name].update(step(sides[name], scale))
                found.append(measured)
                print(f"round {len(found)} of {rounds}", file=sys.stderr)
    return found


def table(rounds: list[dict[str, dict[str, float]]]) -> str:
    """Markdown, one row for each metric."""
    lines = ["| | before | after | after / before | range |", "|---|---|---|---|---|"]
    for name, (unit, _) in METRICS.items():
        before, after = ([each[side][name] for each in rounds] for side in ("before", "after"))
        ratios = [second / first for first, second in zip(before, after, strict=True)]
        values = [f"{statistics.median(each):,.4g} {unit}".strip() for each in (before, after)]
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        lines.append(f"| {name} | {values[0]} | {values[1]} | {statistics.median(ratios):.3f} | {spread} |")
    return "\n".join(lines)


class _Side:
    """One checkout: its worker process and its HTTP server."""

    def __init__(self, path: Path, worker: subprocess.Popen[str], server: Any) -> None:
        self.python = str(path / ".venv/bin/python")
        self.worker = worker
        self.server = server

    def ask(self, what: str, count: int) -> Any:
        """Have the worker measure something."""
        assert self.worker.stdin is not None
        assert self.worker.stdout is not None
        self.worker.stdin.write(json.dumps([what, count]) + "\n")
        self.worker.stdin.flush()
        answer = self.worker.stdout.readline()
        assert answer, "the worker has ended; its error is above"
        return json.loads(answer)


@contextlib.contextmanager
def _side(path: Path) -> Iterator[_Side]:
    from http_server import start

    python = str(path / ".venv/bin/python")
    with tempfile.TemporaryDirectory() as runtime, contextlib.ExitStack() as stack:
        environ = {**os.environ, "BELLJAR_RUNTIME_DIR": f"{runtime}/run"}
        worker = subprocess.Popen(
            [python, "-c", _WORKER_ENTRY, str(Path(__file__).parent)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environ,
        )
        try:
            server = stack.enter_context(start(str(path), [python, "-m", "belljar", "serve", "--port", "{port}"]))
            yield _Side(path, worker, server)
        finally:
            assert worker.stdin is not None
            assert worker.stdout is not None
            worker.stdin.close()
            worker.wait(60)
            worker.stdout.close()


_WORKER_ENTRY = "import sys; sys.path.insert(0, sys.argv[1]); import compare; compare.serve_worker()"


def _hello(side: _Side, scale: float) -> dict[str, float]:
    count = max(5, int(150 * scale))
    p50, cpu, _ = side.ask("runs", -count)
    _, crowd_cpu, rate = side.ask("runs", count * 4)
    faults, zygote_faults = side.ask("faults", max(3, int(20 * scale)))
    return {
        "hello, p50": p50 * 1000,
        "hello, CPU per run, one in flight": cpu * 1000,
        "hello, CPU per run, 16 in flight": crowd_cpu * 1000,
        "hello, rate with 16 in flight": rate,
        "page faults of a guest": faults,
        "page faults of its zygote, per run": zygote_faults,
    }


def _sessions(side: _Side, scale: float) -> dict[str, float]:
    opened, cell, branch = side.ask("sessions", max(2, int(10 * scale)))
    return {
        "session: open, p50": opened * 1000,
        "session: cell, p50": cell * 1000,
        "session: branch, p50": branch * 1000,
    }


def _http(side: _Side, scale: float) -> dict[str, float]:
    import wrk
    from meters import descendants

    def cpu_seconds() -> float:
        return sum(_cpu_of(pid) for pid in (side.server.process.pid, *descendants(side.server.process.pid)))

    before = cpu_seconds()
    pressed = wrk.press(side.server.port, [("/v1/execute", _BODY)], _RIGHT, _IN_FLIGHT, max(1, int(4 * scale)))
    assert not pressed.wrong, f"{pressed.wrong} wrong answers"
    spent = cpu_seconds() - before
    return {"HTTP, 16 connections": pressed.per_second, "HTTP, CPU per request": spent / pressed.requests * 1000}


def _cpu_of(pid: int) -> float:
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")  # its own, and of children it has waited for
    return 0.0


def _around(side: _Side, scale: float) -> dict[str, float]:
    count = max(2, int(7 * scale))
    return {
        "idle service (Pss)": side.ask("memory", 0) / 1e6,
        "import belljar": _seconds([side.python, "-c", "import belljar"], count) * 1000,
        "belljar --help": _seconds([side.python, "-m", "belljar", "--help"], count) * 1000,
    }


def _seconds(command: list[str], count: int) -> float:
    taken = []
    for _ in range(count):
        began = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


_STEPS = (_hello, _sessions, _http, _around)


# ---- the worker: runs with the interpreter and the code of one checkout


def serve_worker() -> None:
    """Answer one question for each line on standard input."""
    from meters import CpuMeter

    meter = CpuMeter()
    try:
        asyncio.run(_serve(meter))
    finally:
        meter.close()


async def _serve(meter: Any) -> None:
    import belljar

    async with belljar.AsyncSandbox() as box:
        await _run(box)
        async with box.session() as session:  # starts the warm process that sessions are forked from
            await session.run("1")
        while line := await asyncio.to_thread(sys.stdin.readline):
            what, count = json.loads(line)
            answer = await {"runs": _runs, "faults": _faults, "sessions": _session_times, "memory": _memory}[what](
                box, count, meter
            )
            print(json.dumps(answer), flush=True)


async def _run(box: Any) -> float:
    began = time.perf_counter()
    outcome = await box.run(_HELLO)
    assert outcome.stdout == "5\n", outcome
    return time.perf_counter() - began


async def _runs(box: Any, count: int, meter: Any) -> tuple[float, float, float]:
    """Median seconds, CPU seconds per run, runs per second. A negative count: one after the other."""
    await asyncio.sleep(_SETTLE_SECONDS)  # the ready guests are there again
    cpu, began, durations = meter.seconds(), time.perf_counter(), []
    left = iter(range(abs(count)))

    async def keep_running() -> None:
        for _ in left:
            durations.append(await _run(box))

    await asyncio.gather(*(keep_running() for _ in range(_IN_FLIGHT if count > 0 else 1)))
    elapsed = time.perf_counter() - began
    await asyncio.sleep(_SETTLE_SECONDS)  # making the next ready guests is part of the price
    spent = meter.seconds() - cpu
    return statistics.median(durations), spent / abs(count), abs(count) / elapsed


async def _faults(box: Any, count: int, meter: Any) -> tuple[float, float]:
    """Page faults of a guest, and those of the warm processes per run: of all that were there before and after."""
    before = _faults_of_descendants()
    guests = statistics.median([int((await box.run(_FAULTS)).stdout) for _ in range(count)])
    await asyncio.sleep(_SETTLE_SECONDS)
    after = _faults_of_descendants()
    return guests, sum(after[pid] - before[pid] for pid in before.keys() & after.keys()) / count


def _faults_of_descendants() -> dict[int, int]:
    from meters import descendants

    found = {}
    for pid in descendants(os.getpid()):
        with contextlib.suppress(OSError):
            found[pid] = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[7])
    return found


async def _session_times(box: Any, count: int, meter: Any) -> tuple[float, float, float]:
    opened, cells, branches = [], [], []
    for _ in range(count):
        began = time.perf_counter()
        async with box.session() as session:
            opened.append(time.perf_counter() - began)
            for number in range(20):
                began = time.perf_counter()
                outcome = await session.run(f"print({number})")
                cells.append(time.perf_counter() - began)
                assert outcome.stdout == f"{number}\n", outcome
            for _ in range(2):
                began = time.perf_counter()
                (twin,) = await session.branch(1)
                branches.append(time.perf_counter() - began)
                await twin.close()
    return tuple(map(statistics.median, (opened, cells, branches)))  # type: ignore[return-value]


async def _memory(box: Any, count: int, meter: Any) -> int:
    from meters import descendants, memory_of

    await asyncio.sleep(_SETTLE_SECONDS)
    total = 0
    for pid in (os.getpid(), *descendants(os.getpid())):
        with contextlib.suppress(OSError):
            total += memory_of(pid).proportional
    return total


if __name__ == "__main__":
    sys.exit(main())
