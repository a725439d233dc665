"""Find out which walls work on this machine, by putting up each one in a child process and trying to get through.

`run` starts a new interpreter for this: most of the steps cannot be undone, and what the caller has opened, loaded or
inherited must not influence the result. The walls are put up by the same code as around guests; this package only adds
the attempts to get through.
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
from belljar.jail.probe.stage import ProbeConfig, in_child
from belljar.jail.probe.walls import Wall, list_walls, read_sysctls

_START = "import sys; sys.path.insert(0, sys.argv[2]); from belljar.jail.probe import main; main(sys.argv[1])"
_ALL_SECONDS = 120.0


class ProbeFailed(Exception):
    """The probe process failed or timed out; the message contains what it printed."""


def run(uid_base: int, cgroup_parent: str) -> dict[str, Any]:
    """Probe this machine and return `walls` (a list of rows) and `facts` about the kernel.

    Raises:
        ProbeFailed: the probe process failed or timed out.
    """
    sources = os.path.abspath(f"{os.path.dirname(__file__)}/../../..")
    name = f"{cgroup_parent}/probe-{os.getpid()}"
    # The ids of the last possible instance: they are the least likely to be in use by a running server.
    config = json.dumps([uid_base + (INSTANCES_MAX - 1) * policy.UIDS_PER_INSTANCE, name])
    try:
        probed = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _START, config, sources],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env={"LANG": "C.UTF-8"},
            cwd="/",
            timeout=_ALL_SECONDS,
            start_new_session=True,  # Ctrl-C goes to the caller only; the probe ends with the caller
        )
        answer: dict[str, Any] = json.loads(probed.stdout)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ProbeFailed(str(error)) from error
    except ValueError as error:
        printed = probed.stderr.decode("utf-8", "replace").strip()
        raise ProbeFailed(f"exit code {probed.returncode}: {printed or 'no output'}") from error
    finally:
        _remove_cgroups(name)
    return answer


def _remove_cgroups(name: str) -> None:
    """Remove the cgroups of a probe that was killed; otherwise the probe has removed them itself."""
    with contextlib.suppress(cgroups.CgroupsUnavailable, OSError):
        left = [f"{each.path}/{name}" for each in cgroups.find_hierarchies()]
        cgroups.remove_trees([path for path in left if os.path.exists(path)], deadline_seconds=5.0)


def main(config_text: str) -> None:
    """Try every wall and print the result as JSON; runs in the new interpreter."""
    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
    config = ProbeConfig(*json.loads(config_text))
    print(json.dumps({"walls": [_try(wall, config) for wall in list_walls(config)], "facts": _facts()}))


def _try(wall: Wall, config: ProbeConfig) -> dict[str, str]:
    seen, stands = in_child(wall.attempt, config)
    return {
        "name": wall.name,
        "waiver": wall.waiver,
        "state": "ok" if stands else "missing",
        "seen": seen,
        "meaning": wall.meaning,
        "fix": "" if stands else wall.fix,
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
