"""Fuzz all targets, or those named, one after the other, and sum up: `make fuzz`."""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import harness

_COLUMNS = "{:<18} {:>10} {:>9} {:>7} {:>8}  {}"


def main() -> int:
    """The number of targets that broke a rule."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=[], help="all, unless some are named")
    parser.add_argument("--seconds", type=int, default=60, help="for each")
    given = parser.parse_args()
    if importlib.util.find_spec("atheris") is None:
        print(
            "atheris is not installed, and has no wheel for every Python: pip install 'belljar[fuzz]'", file=sys.stderr
        )
        return 1
    names = given.names or harness.names()
    rows, failed = [], 0
    for number, name in enumerate(names, 1):
        print(f"── {number}/{len(names)} {name}, {given.seconds} s", flush=True)
        began = time.monotonic()
        ended = _fuzz(name, given.seconds)
        row = _sum_up(name, ended, time.monotonic() - began)
        rows.append(row)
        print(row, flush=True)
        if ended.returncode:
            failed += 1
            print(ended.stderr[-4000:], file=sys.stderr, flush=True)
    print("\n" + _COLUMNS.format("target", "inputs", "a second", "code", "seconds", "found"))
    print("\n".join(rows))
    return failed


def _fuzz(name: str, seconds: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(harness.HERE / "run.py"), name, "--seconds", str(seconds)]
    return subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)


def _sum_up(name: str, ended: subprocess.CompletedProcess[str], seconds: float) -> str:
    facts = dict(line[6:].split(":", 1) for line in ended.stderr.splitlines() if line.startswith("stat::"))
    inputs = facts.get("number_of_executed_units", "?").strip()
    speed = facts.get("average_exec_per_sec", "?").strip()
    reached = [line.partition(" cov: ")[2].split()[0] for line in ended.stderr.splitlines() if " cov: " in line]
    found = "nothing" if ended.returncode == 0 else "SOMETHING: see tests/fuzz/found/"
    return _COLUMNS.format(name, inputs, speed, reached[-1] if reached else "?", f"{seconds:.0f}", found)


if __name__ == "__main__":
    sys.exit(main())
