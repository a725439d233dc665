"""Start a warden as the first process of a container; it connects to the host through a socket in a shared directory.

A container engine passes no descriptors, so the host puts a socket in a directory that the container sees. Orders, pids
and descriptors travel over it as on the host itself, because host and container share one kernel. The host's own
Python, mounted into the container (`host_python.py`), runs this: no code of the image runs before the walls are up.

When the host dies, the socket closes; the warden and then its keeper exit, and with its first process the kernel ends
the container, whether or not the container engine still runs.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Sequence

from belljar import channel
from belljar.inside.warden import warden
from belljar.jail import policy, syscalls

#: Top-level directories of an image that guests do not see: they belong to the system, or every guest has its own.
_NOT_SHOWN = {"boot", "dev", "etc", "lost+found", "media", "mnt", "proc", "root", "run", "sys", "tmp", "var", "work"}
_ANSWER_BYTES = 65536
_DESCRIBE_PYTHON = """
import json, os, sys
from importlib.util import find_spec
print(json.dumps({
    "version": ".".join(map(str, sys.version_info[:3])),
    "python": sys.executable,
    "prefix": os.path.realpath(sys.base_prefix),
    "warm": [name for name in sys.argv[1:] if find_spec(name.split(".")[0])],
}))
"""


def main(socket_path: str, warm_imports: Sequence[str] = ()) -> None:
    """Describe this image to the host, then run as its warden. Never returns."""
    control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    control.connect(socket_path)
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
    """Describe the image for the host, which trusts nothing of it: the image may be hostile."""
    shown = [
        f"/{name}"
        for name in sorted(os.listdir("/"))
        if name not in _NOT_SHOWN and os.path.isdir(f"/{name}") and not os.path.islink(f"/{name}") and _holds(name)
    ]
    own = f"{policy.ENVIRONMENT_DIR}/bin/python"
    found = _describe_python(own if os.path.exists(own) else "python3", warm_imports)
    if found and os.path.exists(own):
        found["python"] = own  # not the resolved path: started by this one, it knows that it is an environment
    instruments = f"{policy.ENVIRONMENT_DIR}/share/instruments/coverage"
    return {"shown": shown, "path": os.environ.get("PATH", ""), "measures": os.path.isdir(instruments), **found}


def _describe_python(python: str, names: Sequence[str]) -> dict[str, object]:
    """Ask the image's own Python about itself and these modules; return {} if it has none.

    It runs without capabilities, but as root: some Pythons are installed in home directories that only root can read.
    """
    answer, report = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.dup2(report, 1)
            os.chdir("/")
            syscalls.set_capabilities(0, inheritable=0)
            syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)  # otherwise the exec would restore root's capabilities
            environ = {"PATH": os.environ.get("PATH", os.defpath)}
            os.execvpe(python, [python, "-I", "-c", _DESCRIBE_PYTHON, *names], environ)
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
