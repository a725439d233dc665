"""`belljar serve` with a heartbeat in the server and in each runner that records the longest stall.

A stall is measured as the CPU time that the process used between two beats, so other processes and a slow machine do
not count, but a call that holds the interpreter in any thread does.

Usage: python watched_server.py NOTES_DIR ARGUMENTS...
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

BEAT_SECONDS = 0.002


async def _beat(notes: Path) -> None:
    """Record the longest stall since the file was emptied."""
    notes.write_text("")
    worst, before = 0.0, time.process_time()
    while True:
        await asyncio.sleep(BEAT_SECONDS)
        now = time.process_time()
        if notes.stat().st_size == 0:
            worst = 1e-9
            notes.write_text(f"{worst:.9f}")
            now = time.process_time()
        elif now - before > worst:
            worst = now - before
            notes.write_text(f"{worst:.9f}")
            now = time.process_time()
        before = now


def watch(notes: Path) -> None:
    """Add the heartbeat to every event loop of this process."""
    import uvloop

    real = uvloop.run

    async def beside(main: Coroutine[Any, Any, Any]) -> Any:
        beating = asyncio.create_task(_beat(notes))
        try:
            return await main
        finally:
            beating.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await beating

    def run(main: Coroutine[Any, Any, Any], **options: Any) -> Any:
        return real(beside(main), **options)

    uvloop.run = asyncio.run = run


def _main() -> None:
    directory, *arguments = sys.argv[1:]
    watch(Path(directory) / "server")
    from belljar.backends.runners import handle

    here = str(Path(__file__).parent)
    watched = f"sys.path.append({here!r}); import os, pathlib, watched_server; "
    watched += f"watched_server.watch(pathlib.Path({directory!r}) / f'runner-{{os.getpid()}}'); "
    begin, _, rest = handle._START.partition("from belljar")
    handle._START = begin + watched + "from belljar" + rest
    sys.argv[:] = ["belljar", *arguments]
    from belljar.frontends.cli import main

    sys.exit(main())


if __name__ == "__main__":
    os.environ.pop("PYTHONSTARTUP", None)
    _main()
