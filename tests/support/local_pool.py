"""A local back end without an engine, for tests that inspect its jails and guests."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from belljar.backends.local import LocalSandbox
from belljar.backends.local.pool.pool import LocalPool
from belljar.environments import Environments
from belljar.settings import Settings

_SETTLED_SECONDS = 0.5


def descriptors() -> set[tuple[str, str]]:
    """The open descriptors of this process, with their targets."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile, like the one of the listing itself
            found.add((name, os.readlink(f"/proc/self/fd/{name}")))
    return found


def children(pid: int) -> list[int]:
    """The children of all threads of a process."""
    found: list[int] = []
    with contextlib.suppress(FileNotFoundError):  # the process has ended since
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):  # the thread has ended since
                found += map(int, (task / "children").read_text().split())
    return found


def arguments(pid: int) -> str:
    """The command line of a process; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""  # such as a thread that creates a jail


def youngest_warden() -> int:
    """The warden of the sandbox opened last in this process; other tests may have sandboxes too."""
    keepers = [pid for pid in children(os.getpid()) if "warden" in arguments(pid) and children(pid)]
    (warden,) = children(max(keepers, key=_started_at))
    return warden


def zygotes(warden: int) -> list[int]:
    """The zygotes of a pool."""
    return [pid for pid in children(warden) if "main.py" in arguments(pid)]


def jail_inits(warden: int) -> list[int]:
    """The first process of each jail of a pool."""
    return [pid for pid in children(warden) if "infinity" in arguments(pid)]


def _started_at(pid: int) -> int:
    """Start time in ticks; pids cannot be compared instead, because they wrap around."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def limit_descriptors(pid: int, most: int) -> None:
    """Change the soft limit of a process in a child user namespace, after joining it for the permission."""
    code = (
        "import os, resource, sys; from belljar.jail import syscalls\n"
        "pid, most = map(int, sys.argv[1:])\n"
        "syscalls.setns(os.pidfd_open(pid), syscalls.CLONE_NEWUSER)\n"
        "_, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)\n"
        "resource.prlimit(pid, resource.RLIMIT_NOFILE, (most, hard))"
    )
    subprocess.run([sys.executable, "-c", code, str(pid), str(most)], check=True)


async def settled_descriptors() -> set[tuple[str, str]]:
    """The open descriptors once they stop changing: some are closed shortly after their use."""
    clock = asyncio.get_running_loop().time
    async with asyncio.timeout(20):
        seen, since = descriptors(), clock()
        while clock() - since < _SETTLED_SECONDS:
            await asyncio.sleep(0.01)
            now = descriptors()
            if now != seen:
                seen, since = now, clock()
    return seen


@contextlib.asynccontextmanager
async def opened(
    settings: Settings, trouble: list[object] | None = None
) -> AsyncIterator[tuple[LocalSandbox, LocalPool]]:
    """Yield an open back end and the pool of its default environment; append unhandled exceptions to `trouble`."""
    if trouble is not None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: trouble.append(context))
    sandbox = LocalSandbox(settings, Environments(settings.state_dir, settings.environments), print)
    await sandbox.open()
    try:
        pool = await sandbox._pools.enter("default")
        assert isinstance(pool, LocalPool)
        yield sandbox, pool
    finally:
        await sandbox.close()
