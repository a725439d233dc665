"""Which walls this machine can build, found out by building each one in a process that is then thrown away.

Asked from a fresh interpreter (`ask`), because most of these steps cannot be undone, and because what the asking
process holds, has loaded or has inherited must not colour the answer. The walls are put up by the same code that puts
them up around guests; what is added here is only the attempt to get through.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
from typing import Any

from belljar.jail import cgroups, policy, syscalls
from belljar.jail.instance import INSTANCES_MAX
from belljar.jail.probe.stage import Orders, in_child
from belljar.jail.probe.walls import WALLS, Wall, read_sysctls

_START = "import sys; sys.path.insert(0, sys.argv[2]); from belljar.jail.probe import main; main(sys.argv[1])"
_ALL_SECONDS = 120.0


class ProbeFailed(Exception):
    """The probe itself did not come to its end; the message says what it printed."""


def ask(uid_base: int, cgroup_parent: str) -> dict[str, Any]:
    """Probe this machine: `walls`, a list of rows, and `facts` about the kernel.

    Raises:
        ProbeFailed: no answer came.
    """
    sources = os.path.abspath(f"{os.path.dirname(__file__)}/../../..")
    name = f"{cgroup_parent}/probe-{os.getpid()}"
    # The last instance's ids: the least likely to be in use by a server that runs right now.
    orders = json.dumps([uid_base + (INSTANCES_MAX - 1) * policy.UIDS_PER_INSTANCE, name])
    try:
        asked = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _START, orders, sources],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env={"LANG": "C.UTF-8"},
            cwd="/",
            timeout=_ALL_SECONDS,
            start_new_session=True,  # Ctrl-C is for the caller, who ends this one by leaving
        )
        answer: dict[str, Any] = json.loads(asked.stdout)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ProbeFailed(str(error)) from error
    except ValueError as error:
        said = asked.stderr.decode("utf-8", "replace").strip()
        raise ProbeFailed(f"exit code {asked.returncode}: {said or 'it said nothing'}") from error
    finally:
        _remove_cgroups(name)
    return answer


def _remove_cgroups(name: str) -> None:
    """Normally there are none left; a probe that was killed could not remove its own."""
    with contextlib.suppress(cgroups.CgroupsUnavailable, OSError):
        left = [f"{each.path}/{name}" for each in cgroups.find_hierarchies()]
        cgroups.remove_trees([path for path in left if os.path.exists(path)], deadline_seconds=5.0)


def main(orders_text: str) -> None:
    """Try every wall and print the answer as JSON."""
    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
    orders = Orders(*json.loads(orders_text))
    print(json.dumps({"walls": [_try(wall, orders) for wall in WALLS], "facts": _facts()}))


def _try(wall: Wall, orders: Orders) -> dict[str, str]:
    seen, stands = in_child(wall.attempt, orders)
    return {
        "name": wall.name,
        "waiver": wall.waiver,
        "state": "ok" if stands else "missing",
        "seen": seen,
        "meaning": wall.meaning,
        "fix": "" if stands else wall.fix(orders),
    }


def _facts() -> dict[str, Any]:
    kernel = os.uname()
    pages = os.sysconf("SC_PHYS_PAGES")
    return {
        "kernel": kernel.release,
        "machine": kernel.machine,
        "python": sys.version.split()[0],
        "uid": os.geteuid(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": pages * resource.getpagesize(),
        "swap_bytes": _swap_bytes(),
        "open_files_max": resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        "sysctls": read_sysctls(),
    }


def _swap_bytes() -> int:
    with contextlib.suppress(OSError), open("/proc/meminfo") as file:
        for line in file:
            if line.startswith("SwapTotal:"):
                return int(line.split()[1]) * 1024
    return 0
