"""What X-Master's dialect costs: `/execute` beside the native API, on one server, under wrk.

    python bench/xmaster.py [--seconds 5] [--rounds 5] [--connections 100] [--sessions 30] [--output-dir docs] [--quick]

Four ways in turn, round by round: a fresh run each by either API, and cells of named sessions by either API, with the
program of the original's benchmark. The server offers tools, as X-Master's does. Writes the part of tools.md between
its markers and xmaster-performance.json, and exits with 1 when an answer was wrong or a target was missed.
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

from http_server import post, start
from report import replace_between_markers
from wrk import Pressed, is_here, press

_DOCS = Path(__file__).resolve().parent.parent / "docs"
CODE = "x = 5\nprint(x)"
TARGET = 0.85
FRESH, OURS_FRESH = "/execute", "/v1/execute"
NAMED, OURS_NAMED = "/execute, named sessions", "/v1/sessions/…/execute"
PAIRS = ((FRESH, OURS_FRESH), (NAMED, OURS_NAMED))
_RIGHT = '":"5\\n"'  # "output" there, "stdout" here


def main() -> int:
    """Measure, print, compare."""
    options = _read_options()
    if not is_here():
        return 3
    os.environ["BELLJAR_TOOLS_BUILTIN"] = "web_search,web_parse"
    os.environ["BELLJAR_SESSIONS_MAX_SESSIONS"] = str(2 * options.sessions)
    with start("belljar", [sys.executable, "-m", "belljar", "serve", "--port", "{port}"]) as server:
        ways = _ways(server.port, options.sessions)
        for asked in ways.values():
            press(server.port, asked, _RIGHT, options.connections, 1)  # opens sessions, fills pools
        rounds: dict[str, list[Pressed]] = {name: [] for name in ways}
        for number in range(options.rounds):
            order = list(ways.items())
            for name, asked in order if number % 2 else reversed(order):
                rounds[name].append(press(server.port, asked, _RIGHT, options.connections, options.seconds))
                print(f"round {number + 1}: {name}: {rounds[name][-1]}", file=sys.stderr)
    report = summarise(rounds, options)
    print(markdown(report))
    directory = options.output_dir or (Path(tempfile.mkdtemp(prefix="belljar-xmaster-")) if options.quick else _DOCS)
    directory.mkdir(parents=True, exist_ok=True)
    replace_between_markers(directory / "tools.md", "xmaster", markdown(report))
    (directory / "xmaster-performance.json").write_text(json.dumps(report, indent=1) + "\n")
    if any(each["wrong"] for each in report["ways"].values()):
        return 1
    return 0 if options.quick or all(each["is_met"] for each in report["targets"]) else 1


def _read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--connections", type=int, default=100)
    parser.add_argument("--sessions", type=int, default=30, help="named sessions of each API")
    parser.add_argument("--output-dir", type=Path, help="where to write (docs/; with --quick a new temporary)")
    parser.add_argument("--quick", action="store_true", help="one second each: proves that it works, measures nothing")
    options = parser.parse_args()
    if options.quick:
        options.seconds, options.rounds, options.connections, options.sessions = 1, 1, 8, 4
    return options


def _ways(port: int, sessions: int) -> dict[str, list[tuple[str, str]]]:
    """The requests of each way: a path and a body, or several that take turns."""
    names = [f"bench-{number}" for number in range(sessions)]
    for name in names:
        post(f"http://127.0.0.1:{port}/v1/sessions", json.dumps({"id": name}).encode())
    program = json.dumps({"code": CODE})
    return {
        OURS_FRESH: [("/v1/execute", program)],
        FRESH: [("/execute", program)],
        OURS_NAMED: [(f"/v1/sessions/{name}/execute", program) for name in names],
        NAMED: [("/execute", json.dumps({"code": CODE, "session_id": name})) for name in names],
    }


def summarise(rounds: dict[str, list[Pressed]], options: argparse.Namespace) -> dict[str, Any]:
    """Medians; the ratio of two ways is the median of the rounds' own ratios."""
    ways = {
        name: {
            "per_second": round(statistics.median(each.per_second for each in seen), 1),
            "p50_ms": round(statistics.median(each.p50_ms for each in seen), 2),
            "p99_ms": round(statistics.median(each.p99_ms for each in seen), 2),
            "wrong": sum(each.wrong for each in seen),
        }
        for name, seen in rounds.items()
    }
    targets = []
    for theirs, ours in PAIRS:
        pairs = zip(rounds[theirs], rounds[ours], strict=True)
        ratios = sorted(there.per_second / here.per_second for there, here in pairs)
        middle = statistics.median(ratios)
        targets.append(
            {
                "what": f"requests/s of {theirs} of those of {ours}",
                "ratio": round(middle, 3),
                "range": [round(ratios[0], 3), round(ratios[-1], 3)],
                "is_met": middle >= TARGET,
            }
        )
    return {
        "when": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "rounds": options.rounds,
        "seconds": options.seconds,
        "connections": options.connections,
        "sessions": options.sessions,
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "ways": ways,
        "targets": targets,
    }


def markdown(report: dict[str, Any]) -> str:
    """The tables."""
    lines = ["| way | requests/s | p50 ms | p99 ms | wrong answers |", "| --- | ---: | ---: | ---: | ---: |"]
    for name, each in report["ways"].items():
        lines.append(
            f"| {name} | {each['per_second']:,.0f} | {each['p50_ms']:.1f} | {each['p99_ms']:.1f} | {each['wrong']} |"
        )
    lines += ["", "| target | limit | measured (range) | verdict |", "| --- | ---: | ---: | --- |"]
    for each in report["targets"]:
        low, high = each["range"]
        verdict = "met" if each["is_met"] else "NOT met"
        lines.append(f"| {each['what']} | ≥ {TARGET} | {each['ratio']:.2f} ({low:.2f} to {high:.2f}) | {verdict} |")
    lines += [
        "",
        f"`wrk`, {report['connections']} connections, {report['sessions']} named sessions of either API, medians of "
        f"{report['rounds']} interleaved rounds of {report['seconds']} s each, on {report['cores']} cores, "
        f"{report['when']}; load average at the end {report['load_average']:.1f}. `python bench/xmaster.py`.",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
