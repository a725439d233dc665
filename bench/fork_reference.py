"""The references: a warm Python that forks, runs the program and reads its output. No walls, no server, no clocks.

It drives itself: a batch is asked for over stdin, and the answer, over stdout, holds every run's duration. What it
measures is therefore less than any service can do that also has to take requests. It comes in two kinds:

- `slim`, exec'd with `-I -S` and the few imports below, runs the program in a bare dictionary without a collector and
  leaves by `_exit`. Nothing that forks a Python can be cheaper: the floor.
- `same` has the modules loaded that are named, and its children behave as a Python that was started does: a real
  `__main__`, the garbage collector on, and at the end exit functions, finalizers and a flush.

Usage: python -I -S fork_reference.py slim [SITE_PACKAGES MODULE ...]
       python -I fork_reference.py same MODULE ...
"""

from __future__ import annotations

import atexit
import gc
import importlib
import marshal
import os
import select
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn

_now = time.perf_counter


def main() -> None:
    """Warm up, then serve batches until stdin ends."""
    global _play
    modules = sys.argv[2:]
    if sys.argv[1] == "same":
        _play = _play_as_main
    elif modules:
        sys.path.append(modules.pop(0))
    for name in modules:
        importlib.import_module(name)
    # The first `compile` of a process builds 1.5 ms worth of syntax-tree types; a warm process has that behind it.
    exec(compile("def add(a, b):\n    return a + b\n\n\nadd(1, 2)\n", "warm.py", "exec"), {"__name__": "warm"})
    answers = os.fdopen(os.dup(1), "wb")  # 1 itself belongs to the programs
    gc.collect()
    gc.freeze()
    gc.disable()
    while True:
        try:
            asked = marshal.load(sys.stdin.buffer)
        except EOFError:
            return
        marshal.dump(_run_batch(asked), answers)
        answers.flush()


def _run_batch(asked: dict[str, Any]) -> dict[str, Any]:
    """Keep `in_flight` runs going for `seconds`, at least `runs_min` and at most `runs_max` of them."""
    programs, in_flight, only_fork = asked["programs"], asked["in_flight"], asked["only_fork"]
    poll = select.poll()
    pending: dict[int, tuple[int, int, float]] = {}  # by read end of the pipe: program, pid, begin
    durations: list[float] = []
    begun = 0
    began = _now()
    deadline = began + asked["seconds"]
    while True:
        while len(pending) < in_flight and begun < asked["runs_max"]:
            if begun >= asked["runs_min"] and _now() >= deadline:
                break
            index = begun % len(programs)
            begun += 1
            run_began = _now()
            descriptor, pid = _start(programs[index][0], only_fork)
            pending[descriptor] = index, pid, run_began
            poll.register(descriptor, select.POLLIN)
        if not pending:
            return {"durations": durations, "wall_seconds": _now() - began}
        for descriptor, _ in poll.poll() if in_flight > 1 else ((next(iter(pending)), 0),):
            index, pid, run_began = pending.pop(descriptor)
            poll.unregister(descriptor)
            output = _finish(descriptor, pid)
            durations.append(_now() - run_began)
            if not only_fork and output != programs[index][1]:
                raise RuntimeError(f"program {index} printed {output!r} instead of {programs[index][1]!r}")


def _start(code: str, only_fork: bool) -> tuple[int, int]:
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        if only_fork:
            os._exit(0)
        _run(code, theirs)
    os.close(theirs)
    return ours, pid


def _run(code: str, output: int) -> NoReturn:
    try:
        os.dup2(output, 1)
        _play(code)
        sys.stdout.flush()
        os._exit(0)
    except BaseException:  # noqa: BLE001  the end of this process
        import traceback

        traceback.print_exc()
    finally:
        os._exit(1)


def _play_bare(code: str) -> None:
    exec(compile(code, "main.py", "exec"), {"__name__": "__main__"})


def _play_as_main(code: str) -> None:
    """As a guest of Belljar: `__main__` is collectable, and only what the program has made is finalized."""
    module = sys.modules["__main__"] = type(sys)("__main__")
    gc.enable()
    exec(compile(code, "main.py", "exec"), module.__dict__)
    atexit._run_exitfuncs()
    module.__dict__.clear()
    del module, sys.modules["__main__"]
    gc.collect(0 if gc.get_count()[1:] == (0, 0) else 2)


_play: Callable[[str], None] = _play_bare


def _finish(descriptor: int, pid: int) -> bytes:
    parts = []
    while chunk := os.read(descriptor, 65536):
        parts.append(chunk)
    os.close(descriptor)
    os.waitpid(pid, 0)
    return b"".join(parts)


if __name__ == "__main__":
    main()
