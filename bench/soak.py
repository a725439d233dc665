"""Tens of thousands of mixed runs, many of them hostile; fails if anything grows or is left behind.

Every so often nothing new is started until all is quiet; what is counted then is exact, not a snapshot of work under
way: processes, zombies, mounts, cgroup directories, descriptors, files, memory.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import dataclasses
import gc
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hostile_mix import Case, all_cases, draw_cases
from meters import CpuMeter, descendants, members, memory_of
from report import replace_between_markers
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from workloads import tasks_workload

import belljar
from belljar.jail.cgroups import CgroupsUnavailable, find_hierarchies
from belljar.settings import load

_DOCS = Path(__file__).resolve().parent.parent / "docs"
_JAIL_SECONDS = 0.2  # then idle jails of a burst are destroyed: counts must not depend on what ran before
_QUIET_SECONDS = 0.5  # without a change for this long, the service counts as settled: well after
_QUIET_SECONDS_MAX = 10.0
_WARM_UP_SHARE = 0.1  # of the runs: pools fill, caches grow, the zygote with packages starts
_MISTAKES_KEPT = 20

#: What is counted, and by how much the last quarter of a soak may exceed the first: absolute, and as a share.
ALLOWED_GROWTH = {
    "processes": (2.0, 0.05),
    "zombies": (0.0, 0.0),
    "mounts": (2.0, 0.05),
    "cgroup directories": (3.0, 0.05),
    "descriptors": (4.0, 0.05),
    "files": (0.0, 0.0),
    "host MB": (3.0, 0.05),
    "warden MB": (1.0, 0.05),
    "zygotes MB": (4.0, 0.05),
    "service Pss MB": (10.0, 0.05),  # moves with every other Python on the machine
}


def main() -> None:
    """Soak, report, and exit with 1 if anything grew, was left behind or ended with a wrong status."""
    options = _read_options()
    console = Console(highlight=False)
    meter = CpuMeter()  # a separate cgroup: processes left in it at the end are Belljar's
    try:
        with tempfile.TemporaryDirectory(prefix="belljar-soak-") as directory:
            os.environ["TMPDIR"] = tempfile.tempdir = directory  # so that every leftover file is found
            report = asyncio.run(_Soak(options, Path(directory), meter, console).run())
    finally:
        meter.close()
    _print_verdict(report, console)
    os.environ.pop("TMPDIR")
    tempfile.tempdir = None
    output_dir = options.output_dir or (
        _DOCS if options.runs >= 10_000 else Path(tempfile.mkdtemp(prefix="belljar-soak-"))
    )
    for path in _publish(report, output_dir):
        console.print(f"wrote {path}")
    sys.exit(0 if report["passed"] else 1)


def _read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Run many mixed programs and see whether anything grows.")
    parser.add_argument("--runs", type=int, default=50_000)
    parser.add_argument("--in-flight", type=int, default=16)
    parser.add_argument("--samples", type=int, default=100, help="how often to stop and count")
    parser.add_argument("--seed", type=int, default=1, help="seed of the order of programs")
    parser.add_argument("--output-dir", type=Path, help="where to write (docs/; below 10,000 runs a new temporary)")
    return parser.parse_args()


class _Soak:
    def __init__(self, options: argparse.Namespace, directory: Path, meter: CpuMeter, console: Console) -> None:
        settings = load()
        jail = dataclasses.replace(settings.jail, cgroup_parent=f"belljar-soak-{os.getpid()}")  # its own
        pool = dataclasses.replace(settings.pool, jail_seconds=_JAIL_SECONDS)
        self.settings = dataclasses.replace(settings, jail=jail, pool=pool, runtime_dir=directory / "run")
        self.options = options
        self.directory = directory
        self.meter = meter
        self.console = console
        self.samples: list[dict[str, float]] = []
        self.mistakes: list[str] = []
        self.mistake_count = 0
        self.statuses: Counter[str] = Counter()
        self.began = time.monotonic()

    async def run(self) -> dict[str, Any]:
        """Run everything from the first program to the last count."""
        options = self.options
        drawn = draw_cases(all_cases(tasks_workload()), options.runs, options.seed)
        step = max(1, options.runs // options.samples)
        before = _count_around(self.settings.jail.cgroup_parent, self.directory)
        self.box = belljar.AsyncSandbox(settings=self.settings)
        with self._progress() as advance:
            async with self.box:
                self.began = time.monotonic()
                cpu_began = self.meter.seconds()
                done = 0
                while done < len(drawn):
                    part = drawn[done : done + step]
                    part_began = time.monotonic()
                    await self._run_part(part)
                    done += len(part)
                    rate = len(part) / (time.monotonic() - part_began)
                    self.samples.append(await self._sample(done, rate))
                    advance(done, self.samples[-1])
                wall_seconds = time.monotonic() - self.began
                cpu_seconds = self.meter.seconds() - cpu_began
                facts = dict(self.box.facts()["sandbox"])
        after = _count_around(self.settings.jail.cgroup_parent, self.directory)
        return self._report(wall_seconds, cpu_seconds, facts, before, after)

    async def _run_part(self, part: list[Case]) -> None:
        waiting = iter(part)

        async def keep_running() -> None:
            for case in waiting:
                await self._run_one(case)

        await asyncio.gather(*(keep_running() for _ in range(self.options.in_flight)))

    async def _run_one(self, case: Case) -> None:
        try:
            if case.cancel_after_seconds is not None:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.box.run(case.code), case.cancel_after_seconds)
                    self._note_mistake(case, "it ended by itself")
                self.statuses["cancelled"] += 1
                return
            outcome = await self.box.run(case.code, **case.asked)
        except belljar.BelljarError as error:
            self.statuses[type(error).__name__] += 1
            self._note_mistake(case, f"{type(error).__name__}: {error}")
            return
        self.statuses[str(outcome.status)] += 1
        if outcome.status != case.status or (case.stdout is not None and outcome.stdout != case.stdout):
            self._note_mistake(
                case, f"{outcome.status}, stdout {outcome.stdout[:200]!r}, stderr {outcome.stderr[-300:]!r}"
            )

    def _note_mistake(self, case: Case, what: str) -> None:
        self.mistake_count += 1
        if len(self.mistakes) < _MISTAKES_KEPT:
            self.mistakes.append(f"{case.name}: expected {case.status}, got {what}")

    async def _sample(self, done: int, rate: float) -> dict[str, float]:
        await self._settle()
        return_free_memory()
        sample = {
            "runs": float(done),
            "seconds": time.monotonic() - self.began,
            "rate": rate,
            "load": os.getloadavg()[0],
        }
        return sample | _count_service(self.settings.jail.cgroup_parent, self.directory)

    async def _settle(self) -> None:
        """Wait until the number of processes is stable: killed jails are gone, ready guests are waiting."""
        before, since, deadline = -1, time.monotonic(), time.monotonic() + _QUIET_SECONDS_MAX
        while time.monotonic() < deadline:
            now = len(descendants(os.getpid()))
            if now != before:
                before, since = now, time.monotonic()
            elif time.monotonic() - since > _QUIET_SECONDS:
                return
            await asyncio.sleep(_QUIET_SECONDS / 5)

    @contextlib.contextmanager
    def _progress(self) -> Iterator[Any]:
        """A bar for people, a line now and then for logs."""

        def describe(sample: dict[str, float]) -> str:
            return f"{sample['rate']:.0f}/s  {sample['processes']:.0f} processes  {sample['service Pss MB']:.0f} MB"

        if not self.console.is_terminal:
            every = max(1, self.options.samples // 20)

            def advance_log(done: int, sample: dict[str, float]) -> None:
                if len(self.samples) % every == 0:
                    self.console.print(f"{done:>7,} runs  {describe(sample)}  {self.mistake_count} mistakes")

            yield advance_log
            return
        columns = (
            TextColumn("soak"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[now]}"),
        )
        with Progress(*columns, console=self.console) as progress:
            bar = progress.add_task("soak", total=self.options.runs, now="")
            yield lambda done, sample: progress.update(bar, completed=done, now=describe(sample))

    def _report(
        self,
        wall_seconds: float,
        cpu_seconds: float,
        facts: dict[str, Any],
        before: dict[str, int],
        after: dict[str, int],
    ) -> dict[str, Any]:
        growth = judge_growth(self.samples, self.options.runs)
        left = {name: after[name] - before[name] for name in after if after[name] > before[name]}
        return {
            "when": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
            "runs": self.options.runs,
            "in_flight": self.options.in_flight,
            "wall_seconds": wall_seconds,
            "cpu_seconds": cpu_seconds,
            "load_median": sorted(sample["load"] for sample in self.samples)[len(self.samples) // 2],
            "statuses": dict(self.statuses.most_common()),
            "growth": growth,
            "left_behind": left,
            "mistake_count": self.mistake_count,
            "mistakes": self.mistakes,
            "facts": facts,
            "samples": self.samples,
            "passed": not left and not self.mistake_count and not any(each["grew"] for each in growth.values()),
        }


def judge_growth(
    samples: list[dict[str, float]], runs: int, allowed: Mapping[str, tuple[float, float]] = ALLOWED_GROWTH
) -> dict[str, dict[str, Any]]:
    """Compare the first quarter after the warm-up with the last, and fit a line through all of it.

    Something grew if the last quarter exceeds the first by more than is allowed and the line rises: a single step
    (a zygote replaced, one more jail at a peak) does not make a rising line for long.
    """
    warm = [sample for sample in samples if sample["runs"] > runs * _WARM_UP_SHARE]
    quarter = max(1, len(warm) // 4)
    verdict = {}
    for name, (absolute, share) in allowed.items():
        values = [sample[name] for sample in warm]
        first, last = _median(values[:quarter]), _median(values[-quarter:])
        slope = _slope([sample["runs"] for sample in warm], values)
        grew = last - first > max(absolute, share * first) and slope > 0
        verdict[name] = {"first": first, "last": last, "per_10k_runs": slope * 10_000, "grew": grew}
    return verdict


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def _slope(places: list[float], values: list[float]) -> float:
    count = len(places)
    middle_place, middle_value = sum(places) / count, sum(values) / count
    spread = sum((place - middle_place) ** 2 for place in places)
    if not spread:
        return 0.0
    pairs = zip(places, values, strict=True)
    return sum((place - middle_place) * (value - middle_value) for place, value in pairs) / spread


# ---- counting


def return_free_memory() -> None:
    """What this process's allocator keeps for later, after a flood say, would hide what is really held."""
    gc.collect()
    with contextlib.suppress(AttributeError, OSError):  # a libc without it
        ctypes.CDLL(None).malloc_trim(0)


def _count_service(cgroup_parent: str, directory: Path) -> dict[str, float]:
    host = os.getpid()
    found = members(host)
    sizes = {"host": 0.0, "warden": 0.0, "zygote": 0.0, "all": 0.0}
    for member in found:
        with contextlib.suppress(OSError):
            memory = memory_of(member.pid)
            sizes["all"] += memory.proportional / 2**20
            kind = member.role.split()[0]
            if kind in sizes:
                sizes[kind] += memory.anonymous / 2**20
    ours = [host, *descendants(host)]
    lasting = [member.pid for member in found if member.role.split()[0] in ("host", "keeper", "warden", "zygote")]
    around = _count_around(cgroup_parent, directory)
    wardens = [member.pid for member in found if member.role == "warden"]
    return {
        "processes": len(ours),
        "zombies": sum(_state(pid) == "Z" for pid in ours),
        "mounts": around["mounts"] + sum(lines_of(f"/proc/{pid}/mountinfo") for pid in wardens),
        "cgroup directories": around["cgroup directories"],
        "descriptors": sum(descriptors_of(pid) for pid in lasting),
        "files": around["files"],
        "host MB": sizes["host"],
        "warden MB": sizes["warden"],
        "zygotes MB": sizes["zygote"],
        "service Pss MB": sizes["all"],
    }


def _count_around(cgroup_parent: str, directory: Path) -> dict[str, int]:
    """Counts that must be as before once the service is closed."""
    return {
        "processes": len(descendants(os.getpid())),
        "mounts": lines_of("/proc/self/mountinfo"),
        "cgroup directories": count_cgroups(cgroup_parent),
        "files": sum(1 for path in directory.rglob("*") if path.is_file() and path.suffix != ".lock"),
    }


def count_cgroups(parent: str) -> int:
    try:
        hierarchies = find_hierarchies()
    except CgroupsUnavailable:
        return 0
    return sum(sum(1 for _ in os.walk(f"{each.path}/{parent}")) for each in hierarchies)


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def lines_of(path: str) -> int:
    try:
        return len(Path(path).read_text().splitlines())
    except OSError:
        return 0


def descriptors_of(pid: int) -> int:
    """How many it has; without those of cgroups, which are counted as such: each has several."""
    count = 0
    with contextlib.suppress(OSError):
        for each in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):  # closed meanwhile
                count += not each.readlink().is_relative_to("/sys/fs/cgroup")
    return count


# ---- reporting


def _print_verdict(report: dict[str, Any], console: Console) -> None:
    rate = report["runs"] / report["wall_seconds"]
    console.print(f"{report['runs']:,} runs in {report['wall_seconds']:.0f} s ({rate:.0f}/s): {report['statuses']}")
    for name, each in report["growth"].items():
        verdict = "[red]GREW" if each["grew"] else "[green]flat"
        console.print(f"  {name:<20} {each['first']:>9.1f} → {each['last']:>9.1f}  {verdict}")
    for name, count in report["left_behind"].items():
        console.print(f"  [red]left behind after closing: {count} {name}")
    for mistake in report["mistakes"]:
        console.print(f"  [red]wrong:[/red] {mistake}", markup=True)
    if report["mistake_count"]:
        console.print(f"  [red]{report['mistake_count']} runs ended otherwise than they must")
    console.print("[bold green]nothing grew" if report["passed"] else "[bold red]FAILED")


def _publish(report: dict[str, Any], directory: Path) -> list[Path]:
    directory.mkdir(parents=True, exist_ok=True)
    page, picture, numbers = directory / "performance.md", directory / "soak.png", directory / "soak.json"
    replace_between_markers(page, "soak", _markdown(report))
    numbers.write_text(json.dumps(report, indent=1) + "\n")
    _draw(report, picture)
    return [page, picture, numbers]


def _markdown(report: dict[str, Any]) -> str:
    rate = report["runs"] / report["wall_seconds"]
    statuses = ", ".join(f"{count:,} {name}" for name, count in report["statuses"].items())
    lines = [
        f"{report['runs']:,} runs, {report['in_flight']} in flight, {report['when']}: {report['wall_seconds']:.0f} s "
        f"with the pauses for counting, {rate:.0f} runs/s, {report['cpu_seconds'] / report['runs'] * 1e3:.1f} ms CPU "
        f"per run; median load of the machine {report['load_median']:.1f}. Statuses: {statuses}. "
        f"Runs that ended otherwise than they must: {report['mistake_count']}. "
        f"Left behind after closing: {report['left_behind'] or 'nothing'}.",
        "",
        "| counted while quiet | first quarter | last quarter | slope per 10,000 runs | verdict |",
        "| --- | ---: | ---: | ---: | --- |",
    ]
    for name, each in report["growth"].items():
        verdict = "GREW" if each["grew"] else "flat"
        lines.append(f"| {name} | {each['first']:.1f} | {each['last']:.1f} | {each['per_10k_runs']:+.2f} | {verdict} |")
    return "\n".join([*lines, "", "![what was counted during the soak](soak.png)"])


def _draw(report: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    pyplot.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    samples = report["samples"]
    runs = [sample["runs"] for sample in samples]
    panels = [
        ("runs per second", ["rate"]),
        (
            "memory in MB: service Pss, the others what they wrote",
            ["service Pss MB", "zygotes MB", "host MB", "warden MB"],
        ),
        ("processes, descriptors", ["processes", "descriptors"]),
        ("mounts, cgroup directories, zombies, files", ["mounts", "cgroup directories", "zombies", "files"]),
    ]
    figure, grid = pyplot.subplots(2, 2, figsize=(11, 6.5), layout="constrained", sharex=True)
    for axes, (title, names) in zip(grid.flat, panels, strict=True):
        for name in names:
            axes.plot(runs, [sample[name] for sample in samples], linewidth=1.4, label=name.removesuffix(" MB"))
        axes.set_title(title, loc="left", fontsize=9.5)
        axes.set_ylim(0, 1.3 * max(1.0, *(sample[name] for sample in samples for name in names)))  # room for the legend
        axes.grid(color="#e3e7ea")
        if len(names) > 1:
            axes.legend(frameon=False, fontsize=8, ncols=2, loc="upper right")
    for axes in grid[1]:
        axes.set_xlabel("runs")
    figure.suptitle(f"Soak: {report['runs']:,} mixed runs, {report['when']}", x=0.01, ha="left", weight="bold")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


if __name__ == "__main__":
    main()
