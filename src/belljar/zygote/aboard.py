"""How a warden starts that is the first process of a container: it finds its host through a door, not a descriptor.

A container engine hands no descriptors over, so the host leaves a socket in a directory that the container sees. Over
it travel, as on the host itself, orders, pids and descriptors: engine and container share one kernel. The container's
Python may be any from 3.9 on.

When the host dies, the socket closes; the warden leaves, the keeper after it, and with its first process the kernel
ends the container, whether or not its engine still runs.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence

from belljar import channel
from belljar.jail import policy
from belljar.zygote import warden

#: Top-level directories of an image that are the system's business, or that every guest has of its own.
_NOT_SHOWN = {"boot", "dev", "etc", "lost+found", "media", "mnt", "proc", "root", "run", "sys", "tmp", "var", "work"}


def main(door: str, warm_imports: Sequence[str] = ()) -> None:
    """Say what this image is, then be its warden. Never returns."""
    control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    control.connect(door)
    channel.send(control, describe(warm_imports))
    try:
        _, _, (log,) = channel.receive(control, descriptors_max=1)
    except channel.ChannelClosed:
        os._exit(0)
    for target in (1, 2):
        os.dup2(log, target)
    os.close(log)
    warden.main(control.detach())


def describe(warm_imports: Sequence[str]) -> dict[str, object]:
    """What the host must know to order a world: hostile if the image is, so the host checks every word."""
    shown = [
        f"/{name}"
        for name in sorted(os.listdir("/"))
        if name not in _NOT_SHOWN and os.path.isdir(f"/{name}") and not os.path.islink(f"/{name}") and _holds(name)
    ]
    own = f"{policy.ENVIRONMENT_DIR}/bin/python"
    has_own = os.path.exists(own)
    return {
        "version": ".".join(map(str, sys.version_info[:3])),
        "python": own if has_own else sys.executable,
        "prefix": _base_of_environment() if has_own else os.path.realpath(sys.base_prefix),
        "shown": shown,
        "path": os.environ.get("PATH", ""),
        "warm": _importable(own if has_own else sys.executable, warm_imports),
    }


def _importable(python: str, names: Sequence[str]) -> list[str]:
    """Which of these the image's Python has: others cannot be imported ahead."""
    if not names:
        return []
    ask = (
        "import sys; from importlib.util import find_spec; "
        "print(*[name for name in sys.argv[1:] if find_spec(name.split('.')[0])])"
    )
    answer, report = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.dup2(report, 1)
            os.chdir("/")
            os.execve(python, [python, "-I", "-c", ask, *names], {"PATH": os.environ.get("PATH", "")})
        finally:
            os._exit(127)
    os.close(report)
    with open(answer, "rb") as file:
        found = file.read().decode("utf-8", "replace").split()
    os.waitpid(pid, 0)
    return found


def _base_of_environment() -> str:
    """Where the Python is installed that the image's own environment was made from: its links lead there."""
    with open(f"{policy.ENVIRONMENT_DIR}/pyvenv.cfg", encoding="utf-8") as file:
        for line in file:
            name, _, value = line.partition("=")
            if name.strip() == "home":
                return os.path.dirname(os.path.realpath(value.strip()))
    return os.path.realpath(sys.base_prefix)


def _holds(name: str) -> bool:
    try:
        return bool(os.listdir(f"/{name}"))
    except OSError:
        return False
