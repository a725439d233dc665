"""What every fuzz target is held to: a value or a documented exception, within bounds, and nothing left open.

A target is a module in `targets/` with a function `run(data)` and a tuple `ALLOWED` of exceptions. Its corpus is
`corpus/NAME/`: every file there is replayed in each test run, so a found case that is added to it stays mended.
`TOKENS`, if a target has them, are byte strings that a fuzzer may insert.
"""

from __future__ import annotations

import asyncio
import atexit
import importlib.util
import os
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
BYTES_MAX = 16 * 1024  # of one input
SECONDS_MAX = 2.0  # of processor time for one input, with the fuzzer's instrumentation
_REPEATS = 2  # a machine that is busy makes one run slow, a parser that is slow all of them


class Finding(AssertionError):
    """A parser broke a rule other than by an exception of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One parser of hostile bytes."""

    name: str
    run: Callable[[bytes], None]
    allowed: tuple[type[BaseException], ...]
    tokens: tuple[bytes, ...]

    @property
    def corpus(self) -> list[Path]:
        """All kept inputs."""
        return sorted(path for path in (HERE / "corpus" / self.name).iterdir() if path.is_file())

    def check(self, data: bytes) -> None:
        """Give the parser one input; an exception is a finding."""
        before = _descriptors()
        seconds = self._time(data)
        if seconds > SECONDS_MAX:
            seconds = min(seconds, *(self._time(data) for _ in range(_REPEATS)))
        if seconds > SECONDS_MAX:
            raise Finding(f"{len(data)} bytes took {seconds:.1f} s")
        if _descriptors() - before and all(self._grows(data) for _ in range(_REPEATS)):  # a sandbox beside may, once
            raise Finding(f"it leaves descriptors open: {sorted(_descriptors() - before)[:20]} …")

    def _grows(self, data: bytes) -> bool:
        before = _descriptors()
        self._time(data)
        return bool(_descriptors() - before)

    def _time(self, data: bytes) -> float:
        began = time.process_time()
        try:
            self.run(data)
        except self.allowed:
            pass
        return time.process_time() - began


def names() -> list[str]:
    """Of every target."""
    return sorted(path.stem for path in (HERE / "targets").glob("*.py"))


def load(name: str) -> Target:
    """Import one target."""
    spec = importlib.util.spec_from_file_location(f"fuzz_target_{name}", HERE / "targets" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return Target(name=name, run=module.run, allowed=module.ALLOWED, tokens=tuple(getattr(module, "TOKENS", ())))


def _descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


# ---- for targets that need an event loop

_loop: asyncio.AbstractEventLoop | None = None
_complaints: list[dict[str, Any]] = []


def drive(main: Coroutine[Any, Any, None]) -> None:
    """Run this to its end on a loop that is kept; what a callback raised on the way is raised here."""
    global _loop
    if _loop is None:
        _loop = asyncio.new_event_loop()
        atexit.register(_loop.close)
        _loop.set_exception_handler(lambda loop, context: _complaints.append(context))
    _complaints.clear()
    _loop.run_until_complete(main)
    for context in _complaints:
        raise context.get("exception") or Finding(context["message"])


def open_loop() -> None:
    """Make the loop before descriptors are counted."""
    drive(asyncio.sleep(0))


async def turns(count: int) -> None:
    """Let the loop go round."""
    for _ in range(count):
        await asyncio.sleep(0)


def pieces(data: bytes, bytes_max: int = 64 * 1024) -> list[bytes]:
    """Cut an input into packets, each after two bytes of length."""
    found = []
    while len(data) >= 2 and len(found) < 64:
        size = min(int.from_bytes(data[:2], "big"), bytes_max)
        found.append(data[2 : 2 + size])
        data = data[2 + size :]
    return found


def import_path() -> None:
    """Let targets import the package of this repository, and this module."""
    for path in (HERE, HERE.parent.parent / "src"):
        if str(path) not in sys.path:
            sys.path.insert(0, str(path))
