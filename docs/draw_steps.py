"""Draw the sequence diagrams of docs/architecture.md from the tables on that page.

    python docs/draw_steps.py

Each table of steps becomes the picture that the page shows above it. The table is the only place to edit: its second
column says who acts ("server") or who sends something to whom ("server → runner"), its third column what happens. A
test fails while a picture and its table differ.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
PAGE = HERE / "architecture.md"

_WIDTH, _LEFT, _TOP, _STEP = 980, 100, 74, 58
_LABEL_CHARACTERS, _LINE_HEIGHT = 36, 15
_HOST, _INSIDE = ("#eef5ee", "#3a7d44"), ("#fff7ea", "#c07a1c")
_BEHIND_THE_WALL = ("zygote", "guest")
_HEAD = '<defs><marker id="a" markerWidth="9" markerHeight="9" refX="8" refY="4.5" orient="auto">' + (
    '<path d="M0,0 L9,4.5 L0,9 z" fill="#444"/></marker></defs>'
)


class Step(NamedTuple):
    """One row of a table."""

    number: int
    source: str
    target: str  # the same as the source where a process acts alone
    label: str


def drawings(page: str) -> dict[str, str]:
    """The text of every diagram whose table is on `page`, by file name."""
    return {name: draw(read_steps(table)) for name, table in _tables(page)}


def _tables(page: str) -> list[tuple[str, str]]:
    return re.findall(r"!\[[^]]*\]\(([\w-]+\.svg)\)\n\n(\| step \|.*?)\n\n", page, re.DOTALL)


def read_steps(table: str) -> list[Step]:
    """The rows below the two head lines of a Markdown table."""
    steps = []
    for line in table.splitlines()[2:]:
        number, actors, what = (cell.strip() for cell in line.strip("|").split("|")[:3])
        source, _, target = (part.strip() for part in actors.partition("→"))
        steps.append(Step(int(number), source, target or source, re.sub(r"[`*]", "", what)))
    return steps


def draw(steps: list[Step]) -> str:
    """An SVG with a lane for each process, in the order in which a request reaches them."""
    order = ("client", "server", "runner", "zygote", "guest")
    lanes = [name for name in order if any(name in (step.source, step.target) for step in steps)]
    gap = (_WIDTH - 2 * _LEFT) / (len(lanes) - 1)
    places = {name: _LEFT + index * gap for index, name in enumerate(lanes)}
    height = _TOP + _STEP * len(steps) + 34
    font = 'font-family="Helvetica, Arial, sans-serif" font-size="14"'
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" {font}>', _HEAD]
    parts.append(f'<rect width="{_WIDTH}" height="{height}" fill="#fff"/>')
    first_inside = next(x for name, x in places.items() if name in _BEHIND_THE_WALL)
    wall = first_inside - min(gap / 2, 90)
    parts.append(f'<rect x="{wall:.0f}" width="{_WIDTH - wall:.0f}" height="{height}" fill="#f3f1fa"/>')
    parts.append(f'<text x="{wall + 8:.0f}" y="{height - 8}" font-size="12" fill="#4a3c86">behind the wall</text>')
    for name, x in places.items():
        parts += _draw_lane(name, x, height)
    for index, step in enumerate(steps):
        parts += _draw_step(step, places, _TOP + _STEP * index + 40)
    return "\n".join([*parts, "</svg>", ""])


def _draw_lane(name: str, x: float, height: int) -> list[str]:
    fill, stroke = _INSIDE if name in _BEHIND_THE_WALL else _HOST
    return [
        f'<line x1="{x:.0f}" y1="54" x2="{x:.0f}" y2="{height - 24}" stroke="{stroke}" stroke-dasharray="3 4"/>',
        f'<rect x="{x - 60:.0f}" y="18" width="120" height="36" rx="6" fill="{fill}" stroke="{stroke}"/>',
        f'<text x="{x:.0f}" y="41" text-anchor="middle" font-weight="bold">{name}</text>',
    ]


def _draw_step(step: Step, places: dict[str, float], y: int) -> list[str]:
    start, end = places[step.source], places[step.target]
    lines = textwrap.wrap(f"{step.number}. {step.label}", _LABEL_CHARACTERS)
    if step.source == step.target:
        mark = f'<rect x="{start - 5:.0f}" y="{y - 18}" width="10" height="26" fill="#ddd" stroke="#888"/>'
        is_last = start == max(places.values())
        anchor, x, top = ("end", start - 12, y - 10) if is_last else ("start", start + 12, y - 10)
    else:
        mark = f'<line x1="{start:.0f}" y1="{y}" x2="{end:.0f}" y2="{y}" stroke="#444" marker-end="url(#a)"/>'
        anchor, x, top = "middle", (start + end) / 2, y - 6 - _LINE_HEIGHT * (len(lines) - 1)
    return [mark, *(_text(line, anchor, x, top + _LINE_HEIGHT * row) for row, line in enumerate(lines))]


def _text(line: str, anchor: str, x: float, y: float) -> str:
    for character, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        line = line.replace(character, entity)
    halo = 'paint-order="stroke" stroke="#fff" stroke-width="4" stroke-linejoin="round" fill="#222"'
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" font-size="12" {halo}>{line}</text>'


if __name__ == "__main__":
    for name, text in drawings(PAGE.read_text("utf-8")).items():
        (HERE / name).write_text(text, "utf-8")
        print(f"wrote docs/{name}")
