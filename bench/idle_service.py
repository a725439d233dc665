"""Memory of a Belljar that waits for work, measured in a process that does nothing else. Prints JSON.

Usage: python bench/idle_service.py [CODE]   (CODE is run first, to warm the zygote that has packages imported)
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from typing import Any

from meters import members, memory_of

import belljar

_DEADLINE_SECONDS = 30.0


async def measure(code: str | None) -> dict[str, Any]:
    """Bytes by process, once the pool of ready guests is full."""
    async with belljar.AsyncSandbox() as box:
        if code is not None:
            outcome = await box.run(code)
            if not outcome.ok:
                raise RuntimeError(f"the warming program failed: {outcome.status}\n{outcome.stderr}")
        wanted = box.settings.pool.ready_guests * (2 if code is not None else 1)
        deadline = time.monotonic() + _DEADLINE_SECONDS
        while box.facts()["sandbox"]["ready_guests"] < wanted and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.3)  # a guest counts as ready before it has entered its jail
        processes = []
        for member in members(os.getpid()):
            memory = memory_of(member.pid)
            processes.append({"role": member.role, "proportional": memory.proportional, "private": memory.private})
        return {"processes": processes, "facts": dict(box.facts()["sandbox"])}


if __name__ == "__main__":
    json.dump(asyncio.run(measure(sys.argv[1] if len(sys.argv) > 1 else None)), sys.stdout)
