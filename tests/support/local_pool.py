"""A back end without an engine before it, for tests that look at its jails and guests from inside."""

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
    """Each that this process has open, with what it is."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile, as the one that listed them
            found.add((name, os.readlink(f"/proc/self/fd/{name}")))
    return found


def children(pid: int) -> list[int]:
    """Of all threads of a process."""
    found: list[int] = []
    with contextlib.suppress(FileNotFoundError):  # the process has ended since
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):  # the thread has ended since
                found += map(int, (task / "children").read_text().split())
    return found


def arguments(pid: int) -> str:
    """The command line; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""  # such as the one that makes a jail


def youngest_warden() -> int:
    """Of the sandbox in this process that was opened last; other tests may have some, too."""
    keepers = [pid for pid in children(os.getpid()) if "warden" in arguments(pid) and children(pid)]
    (warden,) = children(max(keepers, key=_started_at))
    return warden


def zygotes(warden: int) -> list[int]:
    """The warm processes of a pool."""
    return [pid for pid in children(warden) if "main.py" in arguments(pid)]


def jail_inits(warden: int) -> list[int]:
    """Those that hold the jails of a pool."""
    return [pid for pid in children(warden) if "infinity" in arguments(pid)]


def _started_at(pid: int) -> int:
    """In ticks; pids and threads of ours do not tell: they begin anew one day."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def limit_descriptors(pid: int, most: int) -> None:
    """Change the soft limit of a process in a user namespace below ours: whoever joins that has the right."""
    code = (
        "import os, resource, sys; from belljar.jail import syscalls\n"
        "pid, most = map(int, sys.argv[1:])\n"
        "syscalls.setns(os.pidfd_open(pid), syscalls.CLONE_NEWUSER)\n"
        "_, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)\n"
        "resource.prlimit(pid, resource.RLIMIT_NOFILE, (most, hard))"
    )
    subprocess.run([sys.executable, "-c", code, str(pid), str(most)], check=True)


async def settled_descriptors() -> set[tuple[str, str]]:
    """Those that are open once they stay the same: what was used last is closed a moment later."""
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
    """It and the pool of its default environment; exceptions that nobody waits for are added to `trouble`."""
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
