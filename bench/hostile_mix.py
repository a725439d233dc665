"""The programs of a soak: mostly ordinary ones, and some of every kind that ends badly.

Each has the status it must end with, and where it has one the exact output. Slow ends (time-outs, bombs) are rare, so
that tens of thousands of runs take minutes.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from workloads import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One kind of program."""

    name: str
    weight: float  # how many of a thousand runs
    code: str
    status: str
    stdout: str | None = None  # None: not compared
    asked: dict[str, Any] = field(default_factory=dict)
    cancel_after_seconds: float | None = None


_CASES = (
    Case(name="ok", weight=470, code="print(sum(range(100)))", status="ok", stdout="4950\n"),
    Case(
        name="ok, stdin and arguments",
        weight=60,
        code="import sys\nprint(sys.argv[1:], sys.stdin.read().upper())",
        status="ok",
        stdout="['a', 'b'] HELLO\n",
        asked={"stdin": "hello", "args": ["a", "b"]},
    ),
    Case(
        name="ok, files in and out",
        weight=60,
        code="text = open('in.txt').read()\nopen('out.txt', 'w').write(text * 2)\nprint(len(text))",
        status="ok",
        stdout="5\n",
        asked={"files": {"in.txt": "hello"}, "artifacts": ["*.txt"]},
    ),
    Case(name="ok, numpy", weight=20, code="import numpy\nprint(numpy.arange(5).sum())", status="ok", stdout="10\n"),
    Case(
        name="ok, threads",
        weight=20,
        code="import threading\nts = [threading.Thread(target=print, args=('x',)) for _ in range(4)]\n"
        "[t.start() for t in ts]\n[t.join() for t in ts]",
        status="ok",
    ),
    Case(name="failed, exception", weight=90, code="def f():\n    return 1 / 0\n\n\nf()", status="failed"),
    Case(
        name="failed, exit code",
        weight=40,
        code="import sys\nprint('bye')\nsys.exit(3)",
        status="failed",
        stdout="bye\n",
    ),
    Case(name="failed, syntax", weight=20, code="def broken(:\n", status="failed"),
    Case(name="crashed", weight=15, code="import os\nos.kill(os.getpid(), 11)", status="crashed"),
    Case(
        name="timed out, asleep",
        weight=3,
        code="import time\ntime.sleep(60)",
        status="timed_out",
        asked={"timeout": 0.2},
    ),
    Case(name="timed out, busy", weight=2, code="while True:\n    pass", status="timed_out", asked={"timeout": 0.2}),
    Case(
        name="timed out, signals ignored",
        weight=1,
        code="import signal, time\n[signal.signal(n, signal.SIG_IGN) for n in (1, 2, 15)]\n"
        "while True:\n    time.sleep(1)",
        status="timed_out",
        asked={"timeout": 0.2},
    ),
    Case(
        name="memory bomb",
        weight=5,
        code="hoard = []\nwhile True:\n    hoard.append(bytearray(1 << 20))",
        status="out_of_memory",
        asked={"memory_mb": 48},
    ),
    Case(
        name="memory bomb in children",
        weight=1,
        code="import os\nfor _ in range(3):\n    if os.fork() == 0:\n        hoard = []\n        while True:\n"
        "            hoard.append(bytearray(1 << 20))\nwhile True:\n    os.wait()",
        status="out_of_memory",
        asked={"memory_mb": 48},
    ),
    Case(name="flood, cut", weight=15, code="for _ in range(40):\n    print('x' * 50_000)", status="ok"),
    Case(name="flood, ended", weight=0.4, code="while True:\n    print('x' * 65_536)", status="output_limit"),
    Case(
        name="forking",
        weight=60,
        code="import os\nfor n in range(3):\n    if os.fork() == 0:\n        os._exit(n)\n"
        "print(sorted(os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(3)))",
        status="ok",
        stdout="[0, 1, 2]\n",
    ),
    Case(
        name="children left behind",
        weight=30,
        code="import os, time\nfor _ in range(3):\n    if os.fork() == 0:\n        time.sleep(100)\nprint('gone')",
        status="ok",
        stdout="gone\n",
    ),
    Case(
        name="daemonising",
        weight=30,
        code="import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        time.sleep(100)\n"
        "    os._exit(0)\nos.wait()\nprint('parent done', flush=True)",
        status="ok",
        stdout="parent done\n",
    ),
    Case(
        name="fork bomb",
        weight=1,
        code="import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass",
        status="timed_out",
        asked={"timeout": 0.3},
    ),
    Case(
        name="loopback",
        weight=5,
        code="import socket\na = socket.create_server(('127.0.0.1', 0))\n"
        "b = socket.create_connection(a.getsockname())\nc, _ = a.accept()\nb.sendall(b'ping')\nprint(c.recv(4))",
        status="ok",
        stdout="b'ping'\n",
    ),
    Case(
        name="files left",
        weight=20,
        code="for n in range(50):\n    open(f'/tmp/{n}', 'w').write('x' * 1000)\nprint('written')",
        status="ok",
        stdout="written\n",
    ),
    Case(
        name="cancelled",
        weight=10,
        code="import time\ntime.sleep(60)",
        status="cancelled",
        cancel_after_seconds=0.03,
    ),
)


def all_cases(tasks: Workload) -> list[Case]:
    """Every kind, small programs with tests among them."""
    weight = 30 / len(tasks.programs)
    tested = [
        Case(name="ok, task", weight=weight, code=program.code, status="ok", stdout=program.stdout)
        for program in tasks.programs
    ]
    return [*_CASES, *tested]


def draw_cases(cases: list[Case], count: int, seed: int) -> list[Case]:
    """`count` runs in random order; every kind is among them if there are enough."""
    chooser = random.Random(seed)
    weights = [case.weight for case in cases]
    drawn = [*cases, *chooser.choices(cases, weights, k=max(0, count - len(cases)))][:count]
    chooser.shuffle(drawn)
    return drawn
