"""Which isolation layers a container adds to those of the jail, for `belljar doctor` and /v1/info."""

from __future__ import annotations

from typing import Any

from belljar.backends.container import launch_config
from belljar.settings import Settings

_OUTER = "the container: no network, read-only root, no new privileges, limits on memory and processes"
_OWN_KERNEL = {
    "kernel": (
        "ok",
        "outer wall: programs' system calls are answered by the runtime's kernel, not by this machine's",
    ),
    "namespaces": ("ok", "inner wall: pid, network, ipc and uts namespaces, and a root of its own, for each run"),
    "uid": ("ok", "inner wall: each run has a uid of its own, inside the sandbox"),
    "seccomp": ("ok", "inner wall: our list of system calls, kept by the runtime's kernel"),
    "rlimits": ("ok", "inner wall: CPU, address space and processes of each run, process by process"),
    "memory": ("ok", "inner wall: of all processes of a run together, added up ten times a second"),
    "landlock": ("note", "not to be had inside this runtime"),
    "cgroup": ("note", "not to be had inside this runtime: processor time is limited for each process of a run"),
    "offered": ("note", "not offered: a network, branches of sessions, and sessions in other languages than Python"),
}


def in_containers(found: list[dict[str, str]], settings: Settings) -> list[dict[str, str]]:
    """What was probed on this machine, as it applies to programs in containers."""
    runtime = settings.container.runtime or "the engine's usual runtime"
    outer = _wall("container", "ok", f"started by {runtime}", f"outer wall: {_OUTER}")
    if launch_config.has_own_kernel(settings.container.runtime):
        return [outer, *(_wall(name, state, f"under {runtime}", text) for name, (state, text) in _OWN_KERNEL.items())]
    return [outer, *({**wall, "meaning": f"inner wall: {wall['meaning']}"} for wall in found)]


def _wall(name: str, state: str, seen: str, meaning: str) -> dict[str, Any]:
    return {"name": name, "state": state, "seen": seen, "meaning": meaning, "fix": "", "waiver": ""}
