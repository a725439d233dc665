"""The programs every contender runs, each with its exact output."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

_HELLO = """\
def add(a, b):
    return a + b


print("hello", add(1, 2))
"""

_DATA = """\
import numpy as np
import pandas as pd

frame = pd.DataFrame({"x": np.arange(12.0), "y": np.arange(12.0) ** 2})
print(frame.describe())
"""

_CPU = """\
total = 0
for number in range(500_000):
    total += number * number % 7
print(total)
"""


@dataclass(frozen=True, slots=True)
class Program:
    """One program and what it prints."""

    code: str
    stdout: str


@dataclass(frozen=True, slots=True)
class Workload:
    """Programs of one kind. `uses_data` says that they need numpy and pandas."""

    name: str
    what: str
    programs: tuple[Program, ...]
    uses_data: bool = False


def all_workloads(python: Path) -> list[Workload]:
    """Every workload; what `data` prints depends on the library's version, so `python` is asked once."""
    return [
        Workload("hello", "define a function, print a sum", (Program(_HELLO, "hello 3\n"),)),
        Workload("data", "import numpy and pandas, describe a small frame", (_ask(python, _DATA),), uses_data=True),
        Workload("cpu", "about 50 ms of pure Python", (Program(_CPU, f"{sum(n * n % 7 for n in range(500_000))}\n"),)),
        tasks_workload(),
    ]


def _ask(python: Path, code: str) -> Program:
    output = subprocess.run([python, "-I", "-c", code], check=True, capture_output=True, text=True).stdout
    if "mean" not in output:
        raise RuntimeError(f"the data program printed something unexpected:\n{output}")
    return Program(code, output)


def tasks_workload() -> Workload:
    """The small programs in `tasks/`: each asserts its own tests, and then prints its name."""
    programs = []
    for path in sorted((Path(__file__).parent / "tasks").glob("*.py")):
        code = f'{path.read_text("utf-8")}print("{path.stem} passed")\n'
        programs.append(Program(code, f"{path.stem} passed\n"))
    return Workload("tasks", "small programs with their tests, in turn", tuple(programs))
