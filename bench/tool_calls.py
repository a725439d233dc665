"""What a tool call costs: a trivial tool, called from inside a program and timed there.

    python bench/tool_calls.py [--rounds 20] [--output-dir docs] [--quick]

A plain function of the host, which runs in a thread there, and an async one, which runs on its event loop; one call
after the other, and from a pool of 20 threads. Every answer is checked. Writes the part of tools.md between its
markers and tool-calls.json, and exits with 1 when a target is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from report import replace_between_markers

import belljar

_DOCS = Path(__file__).resolve().parent.parent / "docs"
CALLS, THREADS, CALLS_EACH = 200, 20, 50
P50_MS, POOL_SECONDS = 1.0, 1.0

PROGRAM = f"""
import json, time
from concurrent.futures import ThreadPoolExecutor
import tools
call = getattr(tools, NAME)
clock = time.perf_counter
taken = []
for number in range({CALLS}):
    began = clock()
    answer = call(number)
    taken.append(clock() - began)
    assert answer == number + 1
def many(first):
    return [call(first + number) for number in range({CALLS_EACH})]
with ThreadPoolExecutor({THREADS}) as pool:
    list(pool.map(call, range({THREADS})))  # its threads are there
    began = clock()
    answers = list(pool.map(many, range({THREADS})))
    pooled = clock() - began
assert answers == [[first + number + 1 for number in range({CALLS_EACH})] for first in range({THREADS})]
print(json.dumps([taken, pooled]))
"""


def plain(number: int) -> int:
    """The next number."""
    return number + 1


async def awaited(number: int) -> int:
    """The next number."""
    return number + 1


def main() -> int:
    """Measure, print, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--output-dir", type=Path, help="where to write (docs/; with --quick a new temporary)")
    parser.add_argument("--quick", action="store_true", help="one round: proves that it works, measures nothing")
    options = parser.parse_args()
    report = measure(1 if options.quick else options.rounds)
    print(markdown(report))
    directory = options.output_dir or (Path(tempfile.mkdtemp(prefix="belljar-tools-")) if options.quick else _DOCS)
    directory.mkdir(parents=True, exist_ok=True)
    replace_between_markers(directory / "tools.md", "tool-calls", markdown(report))
    (directory / "tool-calls.json").write_text(json.dumps(report, indent=1) + "\n")
    return 0 if options.quick or report["is_met"] else 1


def measure(rounds: int) -> dict[str, Any]:
    """Measure in rounds, one kind of function after the other."""
    kinds = {"a plain function": plain, "an async function": awaited}
    singles: dict[str, list[float]] = {name: [] for name in kinds}
    pools: dict[str, list[float]] = {name: [] for name in kinds}
    with belljar.Sandbox() as box:
        for _ in range(rounds):
            for name, function in kinds.items():
                code = PROGRAM.replace("NAME", repr(function.__name__))
                outcome = box.run(code, tools=[function], timeout=60)
                assert outcome.ok, outcome
                taken, pooled = json.loads(outcome.stdout)
                singles[name] += taken
                pools[name].append(pooled)
    rows = {
        name: {
            "p50_ms": round(1000 * statistics.median(singles[name]), 3),
            "p99_ms": round(1000 * statistics.quantiles(singles[name], n=100)[98], 3),
            "pool_seconds": round(statistics.median(pools[name]), 3),
        }
        for name in kinds
    }
    return {
        "when": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "rounds": rounds,
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "rows": rows,
        "is_met": all(each["p50_ms"] <= P50_MS and each["pool_seconds"] <= POOL_SECONDS for each in rows.values()),
    }


def markdown(report: dict[str, Any]) -> str:
    """The table."""
    pool = f"{THREADS} threads × {CALLS_EACH} calls, s"
    lines = [f"| a call of | p50 ms | p99 ms | {pool} | verdict |", "| --- | ---: | ---: | ---: | --- |"]
    for name, each in report["rows"].items():
        is_met = each["p50_ms"] <= P50_MS and each["pool_seconds"] <= POOL_SECONDS
        numbers = f"{each['p50_ms']:.2f} | {each['p99_ms']:.2f} | {each['pool_seconds']:.2f}"
        lines.append(f"| {name} | {numbers} | {'met' if is_met else 'NOT met'} |")
    lines += [
        "",
        f"Targets: p50 ≤ {P50_MS:g} ms, the pool ≤ {POOL_SECONDS:g} s. {report['rounds']} rounds of {CALLS} calls and "
        f"one pool, on {report['cores']} cores, {report['when']}; load average at the end "
        f"{report['load_average']:.1f}. `python bench/tool_calls.py`.",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
