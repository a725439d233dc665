"""Write a result three times: to the terminal, as Markdown between two markers, and as a plot."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from results import OURS, Result, Row, Target
from rich.console import Console
from rich.table import Table

_FEW = 100  # runs below which a 99th percentile is only the maximum
_COLUMNS = ("contender", "walls", "p50 ms", "p99 ms", "runs", "runs/s at 16", "CPU ms (1)", "CPU ms (16)", "others")

_VERDICTS = {True: "met", False: "NOT met", None: "not measured"}
_TARGET_COLUMNS = ("target", "limit", "measured", "rounds", "of the slim fork+run's", "verdict")


def show(result: Result, console: Console) -> None:
    """Print every table."""
    for workload in _workloads(result):
        table = Table(title=workload, title_justify="left", title_style="bold", show_edge=False)
        for place, column in enumerate(_COLUMNS):
            table.add_column(column, justify="left" if place < 2 else "right")
        for row in _rows(result, workload):
            table.add_row(*_cells(result, row), style="bold" if row.contender == OURS else "")
        console.print(table, "")
    table = Table(title="targets", title_justify="left", title_style="bold", show_edge=False)
    for column in _TARGET_COLUMNS:
        table.add_column(column, justify="left" if column in ("target", "verdict") else "right")
    for target in result.targets:
        colour = {True: "green", False: "red", None: "yellow"}[target.met]
        table.add_row(*_target_cells(target)[:-1], f"[{colour}]{_target_cells(target)[-1]}")
    console.print(table, "")
    for name, value in result.conditions.items():
        console.print(f"{name}: {value}")


def publish(result: Result, directory: Path) -> list[Path]:
    """Write performance.md (only what is between the markers), performance.png and performance.json."""
    directory.mkdir(parents=True, exist_ok=True)
    page, picture, numbers = (directory / f"performance.{suffix}" for suffix in ("md", "png", "json"))
    replace_between_markers(page, "bench", markdown(result))
    draw(result, picture)
    numbers.write_text(json.dumps(_plain(result), indent=1) + "\n")
    return [page, picture, numbers]


def replace_between_markers(page: Path, name: str, text: str) -> None:
    """Put `text` between `<!-- name:begin -->` and `<!-- name:end -->`; a page without them gets them at its end."""
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    before = page.read_text() if page.exists() else "# Performance\n"
    if begin not in before:
        before = f"{before.rstrip()}\n\n{begin}\n{end}\n"
    head, _, rest = before.partition(begin)
    _, _, tail = rest.partition(end)
    page.write_text(f"{head}{begin}\n{text.strip()}\n{end}{tail}")


def markdown(result: Result) -> str:
    """Every table as markdown."""
    lines = ["### Targets", "", *_markdown_table(_TARGET_COLUMNS, 1)]
    lines += [_markdown_row(_target_cells(target)) for target in result.targets]
    lines += ["", "![latency, rate and CPU of every contender](performance.png)", ""]
    for workload in _workloads(result):
        lines += [f"### {workload}", "", *_markdown_table(_COLUMNS, 2)]
        lines += [_markdown_row(_cells(result, row)) for row in _rows(result, workload)]
        lines.append("")
    lines += ["### Memory of an idle service", "", *_memory_table(result), ""]
    lines += ["### Conditions of this run", "", *_markdown_table(("what", "value"), 2)]
    lines += [_markdown_row(list(each)) for each in result.conditions.items()]
    lines += ["", *(f"**{note}**" for note in result.notes)]
    return "\n".join(lines)


def _memory_table(result: Result) -> list[str]:
    columns = [
        "process",
        "bare only: how many",
        "Pss MB each",
        "private MB each",
        "packages too: how many",
        "Pss",
        "private",
    ]
    lines = _markdown_table(tuple(columns), 1)
    roles = dict.fromkeys(each["role"] for idle in result.idle for each in idle.processes)
    for role in roles:
        cells = [role]
        for idle in result.idle:
            found = [each for each in idle.processes if each["role"] == role]
            proportional = sum(each["proportional"] for each in found) / max(1, len(found)) / 2**20
            cells += (
                [str(len(found)), f"{proportional:.1f}", f"{idle.private_mib(role):.1f}"] if found else ["0", "", ""]
            )
        lines.append(_markdown_row(cells))
    totals = [f"{idle.proportional_mib:.0f}" for idle in result.idle]
    lines.append(_markdown_row(["**whole service, Pss**", "", f"**{totals[0]}**", "", "", f"**{totals[1]}**", ""]))
    return lines


def _workloads(result: Result) -> list[str]:
    return list(dict.fromkeys(row.workload for row in result.rows))


def _rows(result: Result, workload: str) -> list[Row]:
    return [row for row in result.rows if row.workload == workload]


def _cells(result: Result, row: Row) -> list[str]:
    low, high = row.rate_spread
    return [
        row.contender,
        result.walls[row.contender],
        _number(row.p50_ms),
        _number(row.p99_ms) + (" (max)" if row.runs < _FEW else ""),
        f"{row.runs:,}",
        f"{_number(row.rate)} ({_number(low)}–{_number(high)})",
        _number(row.cpu_alone_ms),
        _number(row.cpu_many_ms),
        f"{row.others_share:.0%}",
    ]


def _target_cells(target: Target) -> list[str]:
    sign = "≥" if target.at_least else "≤"
    measured = "–" if target.measured is None else f"{_number(target.measured)} {target.unit}"
    spread = "" if target.spread is None else f"{_number(target.spread[0])}–{_number(target.spread[1])}"
    of_floor = "" if target.of_floor is None else f"{_number(target.of_floor)} × ({_VERDICTS[target.met_of_floor]})"
    return [
        *(target.what, f"{sign} {target.limit:g} {target.unit}"),
        *(measured, spread, of_floor, _VERDICTS[target.met]),
    ]


def _number(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _markdown_table(columns: tuple[str, ...], left_columns: int) -> list[str]:
    rule = ["---" if place < left_columns else "---:" for place in range(len(columns))]
    return [_markdown_row(list(columns)), _markdown_row(rule)]


def _markdown_row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _plain(result: Result) -> dict[str, Any]:
    plain = dataclasses.asdict(result)
    for target, kept in zip(result.targets, plain["targets"], strict=True):
        kept["met"] = target.met
    return plain


# ---- the picture

_OUR_COLOUR, _THEIR_COLOUR, _GRID = "#1b6ca8", "#b8c4cc", "#e3e7ea"
_MET, _MISSED = "#3a8f5c", "#c8553d"


def draw(result: Result, path: Path) -> None:
    """Latency, rate and CPU on hello and data, and below them how each target stands."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    pyplot.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    figure = pyplot.figure(figsize=(12, 9.5), layout="constrained")
    grid = figure.add_gridspec(3, 3, height_ratios=(1, 1, 1.25))
    for line, workload in enumerate(("hello", "data")):
        rows = _rows(result, workload)[::-1]
        panels = [figure.add_subplot(grid[line, column]) for column in range(3)]
        _bars(
            panels[0],
            rows,
            [row.p50_ms for row in rows],
            f"{workload}: ms, p50 (whisker: p99)",
            [row.p99_ms for row in rows],
        )
        _bars(panels[1], rows, [row.rate for row in rows], f"{workload}: runs/s, 16 in flight")
        _bars(panels[2], rows, [row.cpu_many_ms for row in rows], f"{workload}: CPU ms per run, 16 in flight")
        for panel in panels[1:]:
            panel.set_yticklabels([])
    _draw_targets(figure.add_subplot(grid[2, :]), result.targets)
    figure.suptitle(f"Belljar beside its peers, one run, {result.conditions['when']}", x=0.01, ha="left", weight="bold")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _bars(axes: Any, rows: list[Row], values: list[float], title: str, whiskers: list[float] | None = None) -> None:
    colours = [_OUR_COLOUR if row.contender == OURS else _THEIR_COLOUR for row in rows]
    places = range(len(rows))
    axes.barh(places, values, color=colours, height=0.68)
    if whiskers is not None:
        for place, value, end in zip(places, values, whiskers, strict=True):
            axes.plot([value, end], [place, place], color="#5b6770", linewidth=1)
    axes.set_xscale("log")
    axes.set_xlim(right=max([*values, *(whiskers or [])]) * 2.6)
    axes.set_yticks(list(places), [row.contender for row in rows])
    axes.set_title(title, loc="left", fontsize=9.5)
    axes.grid(axis="x", color=_GRID)
    axes.set_axisbelow(True)
    for place, value in zip(places, values, strict=True):
        end = whiskers[place] if whiskers is not None else value
        axes.annotate(_number(value), (max(end, value), place), xytext=(4, 0), textcoords="offset points", va="center")


def _draw_targets(axes: Any, targets: list[Target]) -> None:
    """Each target as the part of its limit that is used up: left of the line it is met."""
    judged = [target for target in targets if target.measured is not None][::-1]
    used = [t.limit / t.measured if t.at_least else t.measured / t.limit for t in judged if t.measured]
    axes.barh(range(len(judged)), used, color=[_MET if target.met else _MISSED for target in judged], height=0.62)
    axes.axvline(1.0, color="#333", linewidth=1)
    axes.set_yticks(range(len(judged)), [target.what for target in judged])
    for place, (target, value) in enumerate(zip(judged, used, strict=True)):
        cells = _target_cells(target)
        axes.annotate(
            f"{cells[2]}  (limit {cells[1]})",
            (value, place),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            bbox={"color": "white", "pad": 0.8},
        )
    axes.set_xlim(0, max([*used, 1.0]) * 1.3)
    axes.set_title("targets: part of the limit used up; left of the line is met", loc="left", fontsize=9.5)
    axes.grid(axis="x", color=_GRID)
    axes.set_axisbelow(True)
