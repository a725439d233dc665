"""How a warden starts that is the first process of a container: it finds its host through a door, not a descriptor.

A container engine hands no descriptors over, so the host leaves a socket in a directory that the container sees. Over
it travel, as on the host itself, orders, pids and descriptors: engine and container share one kernel. What runs this
is the host's own Python, lent to the container (`lent`): nothing of the image does anything before its walls stand.

When the host dies, the socket closes; the warden leaves, the keeper after it, and with its first process the kernel
ends the container, whether or not its engine still runs.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Sequence

from belljar import channel
from belljar.inside.warden import warden
from belljar.jail import policy, syscalls

#: Top-level directories of an image that are the system's business, or that every guest has of its own.
_NOT_SHOWN = {"boot", "dev", "etc", "lost+found", "media", "mnt", "proc", "root", "run", "sys", "tmp", "var", "work"}
_ANSWER_BYTES = 65536
_QUESTION = """
import json, os, sys
from importlib.util import find_spec
print(json.dumps({
    "version": ".".join(map(str, sys.version_info[:3])),
    "python": sys.executable,
    "prefix": os.path.realpath(sys.base_prefix),
    "warm": [name for name in sys.argv[1:] if find_spec(name.split(".")[0])],
}))
"""


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
    told = _ask(own if os.path.exists(own) else "python3", warm_imports)
    if told and os.path.exists(own):
        told["python"] = own  # by which it knows that it is an environment
    instruments = f"{policy.ENVIRONMENT_DIR}/share/instruments/coverage"
    return {"shown": shown, "path": os.environ.get("PATH", ""), "measures": os.path.isdir(instruments), **told}


def _ask(python: str, names: Sequence[str]) -> dict[str, object]:
    """What the image's own Python says of itself and of these modules; nothing where there is none.

    It runs without a capability. Its uid stays root's, who alone may read some homes that a Python lives in.
    """
    answer, report = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.dup2(report, 1)
            os.chdir("/")
            syscalls.set_capabilities(0, inheritable=0)
            syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)  # so that the exec gives none back
            environ = {"PATH": os.environ.get("PATH", os.defpath)}
            os.execvpe(python, [python, "-I", "-c", _QUESTION, *names], environ)
        finally:
            os._exit(127)
    os.close(report)
    with open(answer, "rb") as file:
        text = file.read(_ANSWER_BYTES)
    _, status = os.waitpid(pid, 0)
    try:
        return dict(json.loads(text)) if status == 0 else {}
    except ValueError:
        return {}


def _holds(name: str) -> bool:
    try:
        return bool(os.listdir(f"/{name}"))
    except OSError:
        return False
