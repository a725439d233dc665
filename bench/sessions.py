"""Measure sessions beside a real Jupyter kernel, driven by jupyter_client, in the same run; print a table, draw a plot.

    python bench/sessions.py            # some minutes; writes docs/sessions.json, .png and the table in sessions.md
    python bench/sessions.py --quick    # tiny counts: proves that it works, measures nothing

Rounds alternate between them, so that a slow moment of the machine hits all. Only ratios are judged, but for a branch.
The kernel runs with the interpreter and the packages of the guest environment, as the sessions do. A cell's round trip
is measured inside one program and over HTTP, on one kept-alive connection to a server of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import http.client
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from http_server import start
from meters import descendants
from report import replace_between_markers
from rich.console import Console
from rich.table import Table

import belljar
from belljar.environments import Environments
from belljar.jail import policy
from belljar.settings import Settings, load

_DOCS = Path(__file__).resolve().parent.parent / "docs"
_ARRAY = "import numpy\na = numpy.ones(25_000_000)"  # 200 MB


@dataclasses.dataclass(frozen=True)
class Counts:
    """The number of repetitions of each measurement."""

    opens: int = 20
    kernel_starts: int = 5
    cells: int = 300
    branches: int = 20
    idle: int = 300
    churn: int = 5000


_QUICK = Counts(opens=2, kernel_starts=1, cells=5, branches=2, idle=5, churn=6)


def main() -> None:
    """Measure, print, publish."""
    parser = argparse.ArgumentParser(description="Measure sessions beside a Jupyter kernel.")
    parser.add_argument("--quick", action="store_true", help="tiny counts: proves that it works, measures nothing")
    parser.add_argument("--output-dir", type=Path, help="where to write (docs/; quick: a temporary directory)")
    options = parser.parse_args()
    counts = _QUICK if options.quick else Counts()
    directory = options.output_dir or (Path(tempfile.mkdtemp(prefix="belljar-bench-")) if options.quick else _DOCS)
    numbers = measure(counts)
    console = Console(highlight=False, width=120)
    console.print(table(numbers))
    (directory / "sessions.json").write_text(json.dumps(numbers, indent=1) + "\n")
    draw(numbers, directory / "sessions.png")
    if not options.quick:
        replace_between_markers(directory / "sessions.md", "sessions", markdown(numbers))
    console.print(f"wrote {directory / 'sessions.json'} and {directory / 'sessions.png'}")


def measure(counts: Counts) -> dict[str, Any]:
    """Every number, by its name."""
    given = load()
    settings = dataclasses.replace(
        given, sessions=dataclasses.replace(given.sessions, max_sessions=counts.idle + 50, idle_seconds=3600.0)
    )
    environment = Environments(settings.state_dir, settings.environments).ensure("default", print)
    machine = f"{os.cpu_count()} cores, Linux {platform.release()}, load {os.getloadavg()[0]:.1f}"
    numbers: dict[str, Any] = {"machine": machine, "when": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"}
    with belljar.Sandbox(settings=settings) as box:
        box.session().open().close()  # the zygote is warm from here on, as it is on a server
        kernels = [start_kernel(environment.root) for _ in range(counts.kernel_starts)]
        numbers["open_ms"] = median_ms(lambda: box.session().open(), counts.opens, lambda made: made.close())
        numbers["kernel_open_ms"] = statistics.median(seconds for _, _, seconds in kernels) * 1000
        numbers |= measure_cells(box, kernels[0], counts)
        numbers |= measure_idle_memory(box, kernels, settings)
        for manager, client, _ in kernels:
            client.stop_channels()
            manager.shutdown_kernel(now=True)
        numbers |= measure_branches(box, settings, counts)
        numbers |= measure_many(box, settings, counts)
    return numbers


def start_kernel(root: Path) -> tuple[Any, Any, float]:
    """A kernel of the environment that has answered, its client, and how long that took."""
    from jupyter_client.kernelspec import KernelSpec
    from jupyter_client.manager import KernelManager

    manager = KernelManager()
    manager._kernel_spec = KernelSpec(
        argv=[kernel_python(root), "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        display_name="bench",
        language="python",
        env={"PYTHONPATH": kernel_packages(root)},
    )
    begun = time.perf_counter()
    manager.start_kernel()
    client = manager.client()
    client.start_channels()
    client.wait_for_ready(timeout=60)
    return manager, client, time.perf_counter() - begun


def kernel_python(root: Path) -> str:
    return str(root / "bin" / "python")


def kernel_packages(root: Path) -> str:
    """The environment has IPython but no ipykernel: lend it ours, last, so that everything else is its own."""
    import ipykernel

    return str(Path(ipykernel.__file__).resolve().parents[1])


def median_ms(work: Callable[[], Any], count: int, after: Callable[[Any], None] = lambda made: None) -> float:
    """The median of how long `work` takes; what it makes is given to `after`, off the clock."""
    taken = []
    for _ in range(count):
        begun = time.perf_counter()
        made = work()
        taken.append(time.perf_counter() - begun)
        after(made)
    return statistics.median(taken) * 1000


def measure_cells(box: belljar.Sandbox, kernel: tuple[Any, Any, float], counts: Counts) -> dict[str, float]:
    """A cell's round trip, in turns."""
    client = kernel[1]
    serving = start("belljar", [sys.executable, "-m", "belljar", "serve", "--port", "{port}"])
    with box.session() as session, serving as server, contextlib.closing(OverHttp(server.port)) as wire:
        ways: dict[str, Callable[[str], Any]] = {
            "cell_ms": session.run,
            "http_cell_ms": wire.run,
            "kernel_cell_ms": lambda code: client.execute_interactive(code, output_hook=lambda _: None),
        }
        taken: dict[str, list[float]] = {name: [] for name in ways}
        for n in range(counts.cells):
            for name, run in ways.items():
                taken[name].append(median_ms(lambda run=run, n=n: run(f"{n} + 1"), 1))
    return {name: statistics.median(times) for name, times in taken.items()}


class OverHttp:
    """A session on a server, used through the standard library's HTTP client."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self._path = "/v1/sessions"
        self._path += "/" + self._ask("POST", {})["id"]

    def run(self, code: str) -> None:
        """Run one cell and read the complete response."""
        answer = self._ask("POST", {"code": code}, "/execute")
        assert (answer["status"], len(answer["displays"])) == ("ok", 1), answer

    def _ask(self, method: str, body: dict[str, Any], below: str = "") -> Any:
        headers = {"Content-Type": "application/json"}
        self._connection.request(method, self._path + below, json.dumps(body).encode(), headers)
        response = self._connection.getresponse()
        content = response.read()
        assert response.status in (200, 201), content
        return json.loads(content)

    def close(self) -> None:
        """Close the connection; the server ends, and the session with it."""
        self._connection.close()


def measure_idle_memory(
    box: belljar.Sandbox, kernels: list[tuple[Any, Any, float]], settings: Settings
) -> dict[str, float]:
    """What one more idle session or kernel adds: Pss, so that what is shared counts in part."""
    wait_until_quiet(settings)
    before = pss_of_guests(settings)
    with contextlib.ExitStack() as stack:
        for _ in range(10):
            session = stack.enter_context(box.session())
            session.run("x = 1")
        wait_until_quiet(settings)
        session_bytes = (pss_of_guests(settings) - before) / 10
    kernel_bytes = statistics.mean(pss_of_tree(manager.provisioner.process.pid) for manager, _, _ in kernels)
    return {"idle_mb": session_bytes / 1e6, "kernel_idle_mb": kernel_bytes / 1e6}


def measure_branches(box: belljar.Sandbox, settings: Settings, counts: Counts) -> dict[str, float]:
    """How long it takes to branch 200 MB, and what ten branches add: by Pss, and on the accounts of their cgroups."""
    with box.session(memory_mb=1024) as session, contextlib.ExitStack() as stack:
        session.run(_ARRAY)
        took = median_ms(session.branch, counts.branches, lambda made: made[0].close())
        ten = median_ms(lambda: session.branch(10), max(1, counts.branches // 4), close_all)
        wait_until_quiet(settings)
        before = pss_of_guests(settings)
        counted_before = session.state().memory_bytes
        whole = max(map(pss_of, guest_pids(settings)))  # the session that holds the data
        copies = session.branch(10)
        stack.callback(close_all, copies)
        wait_until_quiet(settings)
        added = pss_of_guests(settings) - before
        counted = sum(each.state().memory_bytes for each in (session, *copies)) - counted_before
        return {
            "branch_200mb_ms": took,
            "ten_branches_200mb_ms": ten,
            "ten_branches_added_percent": 100 * added / whole,
            "ten_branches_counted_percent": 100 * counted / counted_before,
        }


def close_all(sessions: list[belljar.Session]) -> None:
    for each in sessions:
        each.close()


def measure_many(box: belljar.Sandbox, settings: Settings, counts: Counts) -> dict[str, Any]:
    """Open many idle sessions at once, then many in sequence; nothing may be left."""
    with contextlib.ExitStack() as stack:
        for _ in range(counts.idle):
            stack.enter_context(box.session()).run("x = 1")
        idle = box.facts()["sessions"]["open"]
        per_session = pss_of_guests(settings) / counts.idle
    before = left_now(settings)
    for _ in range(counts.churn):
        with box.session() as session:
            session.run("x = 1")
    return {
        "idle_at_once": idle,
        "idle_at_once_mb_each": per_session / 1e6,
        "churned": counts.churn,
        "left_before": before,
        "left_after": left_now(settings),
    }


def left_now(settings: Settings) -> dict[str, int]:
    """Counts that must not grow: processes of guests, and descriptors of this process."""
    wait_until_quiet(settings)
    return {"processes": len(guest_pids(settings)), "descriptors": sum(1 for _ in Path("/proc/self/fd").iterdir())}


def wait_until_quiet(settings: Settings) -> None:
    """Guests are forked ahead after each opening, and idle jails of a burst are destroyed: wait for both."""
    seen: list[int] = []
    while len(seen) < 20 or len(set(seen[-20:])) > 1:
        seen.append(len(guest_pids(settings)))
        time.sleep(0.1)


def guest_pids(settings: Settings) -> list[int]:
    """The descendants of this process that have a uid of its guests."""
    first = settings.jail.uid_base
    found = []
    for pid in descendants(os.getpid()):
        with contextlib.suppress(OSError):
            if first <= Path(f"/proc/{pid}").stat().st_uid < first + policy.UIDS_PER_INSTANCE * 64:
                found.append(pid)
    return found


def pss_of_guests(settings: Settings) -> int:
    """Bytes that all guests, zygotes and jail_inits have for themselves; what several share is counted once."""
    return sum(map(pss_of, guest_pids(settings)))


def pss_of_tree(pid: int) -> int:
    """Bytes of a process and its children."""
    children = []
    with contextlib.suppress(OSError):
        children = [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return pss_of(pid) + sum(map(pss_of_tree, children))


def pss_of(pid: int) -> int:
    """Proportional set size in bytes; 0 for a process that has ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def targets(numbers: dict[str, Any]) -> list[tuple[str, str, str, bool]]:
    """The targets, the measurements, and whether each target is met."""
    opened = numbers["kernel_open_ms"] / numbers["open_ms"]
    over_http = numbers["http_cell_ms"] / numbers["kernel_cell_ms"]
    idle = numbers["idle_mb"] / numbers["kernel_idle_mb"]
    branch, added = numbers["branch_200mb_ms"], numbers["ten_branches_added_percent"]
    before, after = numbers["left_before"], numbers["left_after"]
    grown = {name: after[name] - before[name] for name in before}
    left = ", ".join(f"{count} {name}" for name, count in grown.items() if count > 0) or "nothing"
    return [
        ("open, faster than a kernel's start by", "≥ 50 ×", f"{opened:.0f} ×", opened >= 50),
        ("cell over HTTP, of a kernel's", "≤ 0.5", f"{over_http:.2f}", over_http <= 0.5),
        ("idle memory (Pss), of a kernel's", "≤ 0.25", f"{idle:.2f}", idle <= 0.25),
        ("branch of 200 MB, p50", "≤ 20 ms", f"{branch:.1f} ms", branch <= 20),
        ("ten branches of it add (Pss)", "< 10 %", f"{added:.1f} %", added < 10),
        ("idle sessions at once", "300", str(numbers["idle_at_once"]), numbers["idle_at_once"] >= 300),
        (f"left after {numbers['churned']:,} more", "nothing", left, left == "nothing"),
    ]


def facts(numbers: dict[str, Any]) -> list[tuple[str, str]]:
    """Other measurements."""
    cells = " / ".join(f"{numbers[name]:.2f}" for name in ("cell_ms", "http_cell_ms", "kernel_cell_ms"))
    return [
        ("open / kernel's start", f"{numbers['open_ms']:.1f} / {numbers['kernel_open_ms']:.0f} ms"),
        ("cell inside a program / over HTTP / a kernel's", f"{cells} ms"),
        ("idle / kernel", f"{numbers['idle_mb']:.1f} / {numbers['kernel_idle_mb']:.1f} MB"),
        ("ten branches of 200 MB at once", f"{numbers['ten_branches_200mb_ms']:.0f} ms"),
        ("… add to their cgroups, page tables included", f"{numbers['ten_branches_counted_percent']:.1f} %"),
    ]


def table(numbers: dict[str, Any]) -> Table:
    """For the terminal."""
    shown = Table(title=f"Sessions beside a Jupyter kernel ({numbers['machine']})")
    for name in ("what", "target", "measured", ""):
        shown.add_column(name)
    for what, target, measured, holds in targets(numbers):
        shown.add_row(what, target, measured, "yes" if holds else "NO")
    for what, measured in facts(numbers):
        shown.add_row(what, "", measured, "")
    return shown


def markdown(numbers: dict[str, Any]) -> str:
    """For the page."""
    lines = ["| what | target | measured | |", "| --- | --- | --- | --- |"]
    lines += [
        f"| {what} | {goal} | {seen} | {'met' if holds else 'NOT met'} |"
        for what, goal, seen, holds in targets(numbers)
    ]
    lines += [f"| {what} | | {seen} | |" for what, seen in facts(numbers)]
    return "\n".join([*lines, "", f"Measured {numbers['when']} on {numbers['machine']}."])


def draw(numbers: dict[str, Any], path: Path) -> None:
    """Three pairs of bars, each on its own scale."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    pairs = [("open", "ms", "open_ms"), ("cell", "ms", "cell_ms"), ("idle memory", "MB", "idle_mb")]
    figure, axes = pyplot.subplots(1, len(pairs), figsize=(9, 3), layout="constrained")
    for axis, (title, unit, name) in zip(axes, pairs, strict=True):
        values = [numbers[name], numbers[f"kernel_{name}"]]
        bars = axis.bar(["session", "kernel"], values, color=["#2a7", "#999"])
        axis.bar_label(bars, fmt="%.3g")
        axis.set_title(title)
        axis.set_ylabel(unit)
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
