"""Every language: its hello by hand, through Belljar the first time, and through Belljar again.

"By hand" is what a user would type: the same commands, in a directory of their own, without any walls. "First"
compiles; "again" finds the compiled program in the cache. "Walls" is what the jail adds to the run alone: the run step
through Belljar less the same command by hand. Contenders take turns within each round, so ratios within a row can be
trusted where absolute times cannot.

Where a runtime is started ahead of demand, each round waits until it is ready: the result is the latency of an
occasional request. Its start is not saved but moved: at full load nothing is gained by it.

    python bench/languages.py [--rounds 7] [--quick] [--output-dir DIR] [NAME …]

`--output-dir docs` puts the table into docs/languages.md, between its markers, and the numbers beside it.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from report import replace_between_markers

from belljar.assembly import build_engine
from belljar.contract.execution import Outcome
from belljar.contract.request import ExecutionRequest
from belljar.engine.admission.request import admit
from belljar.engine.engine import Engine
from belljar.languages import Toolchain, installed_toolchains, load_all
from belljar.settings import Settings, load

WALLS_TARGET_SECONDS = 0.015
AGAIN_TARGET_SECONDS = 0.010
AGAIN_TARGET_LANGUAGES = ("cpp", "rust", "go", "java")
AHEAD_TARGET = 1 / 3  # of the same by hand, where a runtime was started ahead
_SETTLE_SECONDS = 0.5  # until the runtime that is started ahead is ready,
_SETTLE_STARTS = 8  # plus this many times the duration by hand: both engines start some, on few cores


def main() -> int:
    """Measure, print a table, write it beside its numbers; 1 if an output was wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="languages to measure (default: all)")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="one round: proves that it works, measures nothing")
    parser.add_argument("--output-dir", type=Path, help="write languages.json and the table in languages.md there")
    options = parser.parse_args()
    settings = load()
    machine = installed_toolchains(settings)
    chosen = [load_all()[name] for name in options.names] or [each for each in load_all().values() if each.run]
    here = [each for each in chosen if machine.is_available(each.name)]
    rows = asyncio.run(measure(settings, here, 1 if options.quick else options.rounds))
    table = draw(rows)
    print(table)
    for name in sorted({each.name for each in chosen} - {each.name for each in here}):
        print(f"not here: {name}", file=sys.stderr)
    if options.output_dir is not None:
        options.output_dir.mkdir(parents=True, exist_ok=True)
        (options.output_dir / "languages.json").write_text(json.dumps(rows, indent=2) + "\n")
        replace_between_markers(options.output_dir / "languages.md", "speed", table)
    return 0


async def measure(settings: Settings, toolchains: list[Toolchain], rounds: int) -> list[dict[str, Any]]:
    """One row for each language, with medians over the rounds."""
    without_cache = dataclasses.replace(settings.languages, compile_cache_bytes=0)
    cold = build_engine(dataclasses.replace(settings, languages=without_cache))
    warm = build_engine(settings)
    try:
        await cold.open()
        await warm.open()
        return [await _measure_one(settings, cold, warm, each, rounds) for each in toolchains]
    finally:
        await cold.close(0.0)
        await warm.close(0.0)


async def _measure_one(
    settings: Settings, cold: Engine, warm: Engine, toolchain: Toolchain, rounds: int
) -> dict[str, Any]:
    seen: dict[str, list[float]] = {"by_hand": [], "by_hand_run": [], "first": [], "again": [], "walls": []}
    await _through(settings, cold, toolchain)  # preparation on first use is not part of a run
    await _through(settings, warm, toolchain)
    for _ in range(rounds):
        if toolchain.standby:
            await asyncio.sleep(_SETTLE_SECONDS + _SETTLE_STARTS * max(seen["by_hand_run"], default=1.0))
        by_hand = await asyncio.to_thread(_by_hand, settings, toolchain)
        first, when_first = await _through(settings, cold, toolchain)
        again, when_again = await _through(settings, warm, toolchain)
        seen["first"].append(first)
        seen["again"].append(again)
        if by_hand is not None:
            seen["by_hand"].append(sum(by_hand))
            seen["by_hand_run"].append(by_hand[1])
            seen["walls"] += [each.usage.wall_seconds - by_hand[1] for each in (when_first, when_again)]
    row: dict[str, Any] = {"language": toolchain.name, "rounds": rounds, "started_ahead": bool(toolchain.standby)}
    return row | {name: statistics.median(values) if values else None for name, values in seen.items()}


async def _through(settings: Settings, engine: Engine, toolchain: Toolchain) -> tuple[float, Outcome]:
    execution = admit(settings, ExecutionRequest(toolchain.hello.source, language=toolchain.name, timeout=60))
    began = time.perf_counter()
    outcome = await engine.run(execution)
    seconds = time.perf_counter() - began
    if outcome.stdout != toolchain.hello.stdout:
        raise SystemExit(f"{toolchain.name} said {outcome.status}: {outcome.stdout!r} {outcome.stderr!r}")
    return seconds, outcome


def _by_hand(settings: Settings, toolchain: Toolchain) -> tuple[float, float] | None:
    """Seconds to compile and to run; None where the toolchain only works where jails see it."""
    machine = installed_toolchains(settings)
    if machine.root_of(toolchain.name):
        return None
    plan = toolchain.plan(toolchain.hello.source, (), settings.default_limits.memory_bytes)
    inside, outside = "/toolchains/", f"{machine.toolchains_dir}/"
    with tempfile.TemporaryDirectory(prefix="belljar-bench-") as directory:
        work = Path(directory)
        (work / plan.source).write_text(toolchain.hello.source)
        env = {name: plan.fill((value,))[0] for name, value in toolchain.env.items()}
        env = {name: value.replace("/tmp/", f"{directory}/.tmp-") for name, value in env.items()}
        env = {name: value.replace(inside, outside) for name, value in env.items()}
        env |= {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": directory, "LANG": "C.UTF-8"}
        seconds = []
        for argv in (toolchain.compile.argv if toolchain.compile else (), toolchain.run):
            words = [_spell_out(word, inside, outside, work) for word in plan.fill(argv)]
            began = time.perf_counter()
            if words:
                done = subprocess.run(
                    words, cwd=work, env=env, stdin=subprocess.DEVNULL, capture_output=True, check=False
                )
                if done.returncode != 0:
                    return None
            seconds.append(time.perf_counter() - began)
    return seconds[0], seconds[1]


def _spell_out(word: str, inside: str, outside: str, work: Path) -> str:
    """A file with more words for a compiler may name places that only jails see: have it name them as they are here."""
    word = word.replace(inside, outside)
    if not word.startswith(f"@{outside}"):
        return word
    (work / "words").write_text(Path(word[1:]).read_text().replace(inside, outside))
    return "@words"


def draw(rows: list[dict[str, Any]]) -> str:
    """A table in Markdown, in milliseconds."""
    rounds = max((row["rounds"] for row in rows), default=0)
    lines = [
        f"{os.cpu_count()} cores, {platform.system()} {platform.release()}; medians of {rounds} rounds, in ms.",
        "",
        "| language | by hand | first | again | walls | targets |",
        "|---|---:|---:|---:|---:|---|",
    ]
    for row in rows:
        cells = [f"{row[name] * 1000:.1f}" if row[name] is not None else "–" for name in ("by_hand", "first", "again")]
        walls = f"{row['walls'] * 1000:.1f}" if row["walls"] is not None else "–"
        lines.append(f"| {row['language']} | {' | '.join(cells)} | {walls} | {_judge(row)} |")
    return "\n".join(lines)


def _judge(row: dict[str, Any]) -> str:
    if row["walls"] is None:
        return ""
    missed = []
    if row["walls"] > WALLS_TARGET_SECONDS:
        missed.append("walls above 15 ms")
    if row["language"] in AGAIN_TARGET_LANGUAGES and row["again"] > row["by_hand_run"] + AGAIN_TARGET_SECONDS:
        missed.append("again above 10 ms + run")
    if row["started_ahead"]:
        missed += [
            f"{name} above a third of {by_hand.replace('_', ' ')}"
            for name, by_hand in (("first", "by_hand"), ("again", "by_hand_run"))
            if row[name] > row[by_hand] * AHEAD_TARGET
        ]
    return "missed: " + ", ".join(missed) if missed else "met"


if __name__ == "__main__":
    raise SystemExit(main())
