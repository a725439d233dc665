"""A program that is not Python: this process, jailed and with its files laid out, becomes the toolchain's command.

Nothing of ours is left after the exec but the walls: namespaces, landlock, seccomp, limits and no_new_privs all hold
for whatever is executed.
"""

from __future__ import annotations

import os
import signal
from typing import Any

_DOOR = 3  # as in `languages/standby.cjs`; the socket that was there is closed by now
_WHOLE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC


def prepare(order: dict[str, Any], descriptors: list[int]) -> None:
    """Lay out what was compiled, if anything was, and exec. Never returns."""
    argv = order["argv"]
    try:
        if order.get("has_door"):
            os.dup2(descriptors[0], _DOOR)  # where it will wait for its program
        elif descriptors:
            _unpack(order["compiled"], order["start"], descriptors[0])
            os.close(descriptors[0])
        for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and an exec would pass that on
            signal.signal(ignored, signal.SIG_DFL)
        start = os.execve if "/" in order["path"] else os.execvpe  # in an image, only its own PATH knows
        start(order["path"], argv, os.environ)
    except OSError as error:
        os.write(2, f"belljar: cannot start {argv[0]}: {error.strerror}\n".encode())
    os._exit(127)


def _unpack(files: list[tuple[str, int]], start: int, source: int) -> None:
    """Copy within the kernel. `source` is shared with other guests that do the same: its offset is left alone."""
    for path, size in files:
        if "/" in path:
            os.makedirs(os.path.dirname(path), exist_ok=True)
        target = os.open(path, _WHOLE)
        os.fchmod(target, 0o755)  # not in the call above: a file of the caller's may be there already
        end = start + size
        while start < end:
            sent = os.sendfile(target, source, start, end - start)
            if sent == 0:
                raise OSError(0, "the compiled program is cut short")
            start += sent
        os.close(target)
