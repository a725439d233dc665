"""The contenders: the fork floor, the reference, Belljar, bubblewrap, a cold Python. All behind one method.

Each contender is driven in the leanest way possible, so that no row pays for the benchmark:
the forks drive themselves, cold processes are started with vfork from a plain poll loop, and Belljar is called as an
application would call it, from the event loop of this process.
"""

from __future__ import annotations

import asyncio
import itertools
import marshal
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from results import FLOOR, REFERENCE
from workloads import Program, Workload

import belljar

_now = time.perf_counter
_REFERENCE = Path(__file__).with_name("fork_reference.py")
_SETTLED_SECONDS = 0.03  # without a change for this long, the pool of ready guests counts as refilled
_SETTLE_SECONDS_MAX = 2.0


@dataclass(frozen=True, slots=True)
class Batch:
    """The number of runs that fill `seconds`, within bounds."""

    in_flight: int
    seconds: float
    runs_min: int
    runs_max: int


@dataclass(frozen=True, slots=True)
class Runs:
    """The cost of a batch whose outputs were all right."""

    durations: list[float]
    wall_seconds: float


class WrongOutput(Exception):
    """A contender printed a wrong output, so the benchmark is invalid."""


class Contender(Protocol):
    """Something that runs programs."""

    name: str
    walls: str

    def takes(self, workload: Workload) -> bool:
        """Whether it is measured on this workload."""

    async def open(self) -> None:
        """Get warm."""

    async def run(self, workload: Workload, batch: Batch) -> Runs:
        """Run a batch; all its processes have ended when this returns.

        Raises:
            WrongOutput: an output was not the expected one.
        """

    async def close(self) -> None:
        """Leave nothing behind."""


class WarmFork:
    """`fork` and `fork+run`: see fork_reference.py. For `data` it is a second process with the imports done.

    With `like` it has the same modules loaded as that one's guests, which must be open by then; else next to none.
    """

    walls = "none"

    def __init__(self, name: str, python: Path, *, only_fork: bool = False, like: Belljar | None = None) -> None:
        self.name = name
        self._python = python
        self._only_fork = only_fork
        self._like = like
        self._processes: dict[bool, subprocess.Popen[bytes]] = {}

    def takes(self, workload: Workload) -> bool:
        return not self._only_fork or workload.name in ("hello", "data")

    async def open(self) -> None:
        site_packages = next(self._python.parent.parent.glob("lib/python3*/site-packages"))
        for with_data in (False, True):
            if self._like is not None:
                arguments = ["-I", str(_REFERENCE), "same", *await self._like.loaded_modules(with_data)]
            else:
                extra = [str(site_packages), "numpy", "pandas"] if with_data else []
                arguments = ["-I", "-S", str(_REFERENCE), "slim", *extra]
            self._processes[with_data] = subprocess.Popen(  # noqa: ASYNC220  once, before anything is measured
                [self._python, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={"LANG": "C.UTF-8", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
            )

    async def run(self, workload: Workload, batch: Batch) -> Runs:
        process = self._processes[workload.uses_data]
        assert process.stdin is not None
        assert process.stdout is not None
        asked: dict[str, Any] = {
            "programs": [(program.code, program.stdout.encode()) for program in workload.programs],
            "only_fork": self._only_fork,
            "in_flight": batch.in_flight,
            "seconds": batch.seconds,
            "runs_min": batch.runs_min,
            "runs_max": batch.runs_max,
        }
        marshal.dump(asked, process.stdin)
        process.stdin.flush()
        try:
            answer = marshal.load(process.stdout)
        except EOFError:
            raise WrongOutput(f"{self.name} ended on {workload.name}; its last words are above") from None
        return Runs(answer["durations"], answer["wall_seconds"])

    async def close(self) -> None:
        for process in self._processes.values():
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.close()
            process.wait(10)
            process.stdout.close()


class Belljar:
    """The engine in this process, with default settings: every wall up, ready guests on."""

    name = "belljar"
    walls = "all of them"

    def __init__(self) -> None:
        self.box = belljar.AsyncSandbox()

    def takes(self, workload: Workload) -> bool:
        return True

    async def open(self) -> None:
        await self.box.open()

    async def run(self, workload: Workload, batch: Batch) -> Runs:
        await self.settle()
        durations: list[float] = []
        programs = itertools.cycle(workload.programs)
        begun = itertools.count()
        began = _now()
        deadline = began + batch.seconds

        async def keep_running() -> None:
            while True:
                number = next(begun)
                if number >= batch.runs_max or (number >= batch.runs_min and _now() >= deadline):
                    return
                program = next(programs)
                run_began = _now()
                outcome = await self.box.run(program.code)
                durations.append(_now() - run_began)
                _check(self.name, program, outcome.stdout, f"{outcome.status}\n{outcome.stderr}")

        await asyncio.gather(*(keep_running() for _ in range(batch.in_flight)))
        wall_seconds = _now() - began
        await self.settle()
        return Runs(durations, wall_seconds)

    async def loaded_modules(self, with_data: bool) -> list[str]:
        """The modules that a program finds loaded, in that order; other contenders can import all of them."""
        mention = "if 0:\n    import numpy\n" if with_data else ""  # which warm process it comes from
        outcome = await self.box.run(f"{mention}import sys\nprint(*sys.modules)\n")
        return [name for name in outcome.stdout.split() if name != "__main__" and "belljar" not in name]

    async def run_at_once(self, program: Program, count: int) -> float:
        """Submit `count` programs at once; return the seconds until the last one is answered."""
        began = _now()
        outcomes = await asyncio.gather(*(self.box.run(program.code) for _ in range(count)))
        wall_seconds = _now() - began
        for outcome in outcomes:
            _check(self.name, program, outcome.stdout, f"{outcome.status}\n{outcome.stderr}")
        await self.settle()
        return wall_seconds

    async def settle(self) -> None:
        """Wait until the ready guests are there again: making them is part of what a run costs."""
        before, since, deadline = None, _now(), _now() + _SETTLE_SECONDS_MAX
        while _now() < deadline:
            facts = self.box.facts()
            if facts != before:
                before, since = facts, _now()
            elif _now() - since > _SETTLED_SECONDS:
                return
            await asyncio.sleep(_SETTLED_SECONDS / 5)

    async def close(self) -> None:
        await self.box.close()


class ColdProcess:
    """A new process for every run, started from `command` with the program's file as last argument."""

    def __init__(self, name: str, walls: str, command: list[str], directory: Path) -> None:
        self.name = name
        self.walls = walls
        self._command = command
        self._directory = directory
        self._files: dict[Program, str] = {}

    def takes(self, workload: Workload) -> bool:
        return True

    async def open(self) -> None:
        pass

    async def run(self, workload: Workload, batch: Batch) -> Runs:
        """Blocks the event loop: nothing else may run meanwhile."""
        for program in workload.programs:
            self._file(program)
        poll = select.poll()
        pending: dict[int, tuple[Program, subprocess.Popen[bytes], float]] = {}
        durations: list[float] = []
        programs = itertools.cycle(workload.programs)
        began = _now()
        for _ in _until(batch, began):
            while len(pending) >= batch.in_flight:
                self._collect_one(poll, pending, durations)
            program = next(programs)
            run_began = _now()
            process = subprocess.Popen(  # noqa: ASYNC220  the point is to be leaner than asyncio
                [*self._command, self._file(program)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
            )
            assert process.stdout is not None
            pending[process.stdout.fileno()] = program, process, run_began
            poll.register(process.stdout, select.POLLIN)
        while pending:
            self._collect_one(poll, pending, durations)
        return Runs(durations, _now() - began)

    def _collect_one(
        self,
        poll: select.poll,
        pending: dict[int, tuple[Program, subprocess.Popen[bytes], float]],
        durations: list[float],
    ) -> None:
        for descriptor, _ in poll.poll():
            poll.unregister(descriptor)
            program, process, run_began = pending.pop(descriptor)
            output, _ = process.communicate()
            durations.append(_now() - run_began)
            _check(self.name, program, output.decode(), f"exit code {process.returncode}")

    def _file(self, program: Program) -> str:
        if program not in self._files:
            path = self._directory / f"{self.name.replace(' ', '_')}-{len(self._files)}.py"
            path.write_text(program.code)
            self._files[program] = str(path)
        return self._files[program]

    async def close(self) -> None:
        pass


def _until(batch: Batch, began: float) -> Iterator[None]:
    for number in range(batch.runs_max):
        if number >= batch.runs_min and _now() >= began + batch.seconds:
            return
        yield


def _check(name: str, program: Program, stdout: str, detail: str) -> None:
    if stdout != program.stdout:
        raise WrongOutput(f"{name} printed {stdout!r} instead of {program.stdout!r} ({detail}) for:\n{program.code}")


def bubblewrap_command(python: Path, directory: Path) -> list[str] | None:
    """Every namespace, a read-only view of this machine; None where bubblewrap is missing or may not do that."""
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        return None
    environment = str(python.parent.parent)
    command = [bwrap, "--unshare-all", "--die-with-parent", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
    command += ["--tmpfs", "/tmp", "--ro-bind", environment, environment, "--ro-bind", str(directory), str(directory)]
    command += [str(python)]
    tried = subprocess.run([*command, "-c", "print(1)"], capture_output=True, check=False)
    return command if tried.stdout == b"1\n" else None


def all_contenders(python: Path, directory: Path) -> tuple[list[Contender], list[str]]:
    """The contenders that can be measured here, and a note for each that cannot."""
    ours = Belljar()
    contenders: list[Contender] = [
        WarmFork("fork", python, only_fork=True),
        WarmFork(FLOOR, python),
        ours,
        WarmFork(REFERENCE, python, like=ours),
        ColdProcess("cold python", "none", [str(python)], directory),
    ]
    notes = []
    command = bubblewrap_command(python, directory)
    if command is None:
        notes.append("bubblewrap is not installed or may not make namespaces here: its row is missing, its target open")
    else:
        contenders.append(ColdProcess("bwrap python", "namespaces", command, directory))
    if os.geteuid() != 0:
        notes.append("not root: Belljar refuses to run without the wall 'uid' unless it was given up")
    return contenders, notes
