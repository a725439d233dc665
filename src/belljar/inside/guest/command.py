"""Replace a guest process by the command of another language, once it is jailed and has its files.

After the exec only the walls are left of Belljar: namespaces, landlock, seccomp, limits and no_new_privs apply to
whatever is executed.
"""

from __future__ import annotations

import os
import signal
from typing import Any

_STANDBY = 3  # where `languages/standby.cjs` waits for its program; the guest's socket there is closed by now
_WHOLE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC


def prepare(order: dict[str, Any], descriptors: list[int]) -> None:
    """Write the files of a compiled program, if there are any, and exec. Never returns."""
    argv = order["argv"]
    try:
        if order.get("has_door"):
            os.dup2(descriptors[0], _STANDBY)
        elif descriptors:
            _unpack(order["compiled"], order["start"], descriptors[0])
            os.close(descriptors[0])
        for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and an exec keeps that
            signal.signal(ignored, signal.SIG_DFL)
        start = os.execve if "/" in order["path"] else os.execvpe  # in a container image, search its PATH
        start(order["path"], argv, os.environ)
    except OSError as error:
        os.write(2, f"belljar: cannot start {argv[0]}: {error.strerror}\n".encode())
    os._exit(127)


def _unpack(files: list[tuple[str, int]], start: int, source: int) -> None:
    """Copy the files from `source` with sendfile; other guests read it too, so its file offset is not used."""
    for path, size in files:
        if "/" in path:
            os.makedirs(os.path.dirname(path), exist_ok=True)
        target = os.open(path, _WHOLE)
        os.fchmod(target, 0o755)  # not a mode for `open`, because the file may already exist
        end = start + size
        while start < end:
            sent = os.sendfile(target, source, start, end - start)
            if sent == 0:
                raise OSError(0, "the compiled program is cut short")
            start += sent
        os.close(target)
