"""Write a file to a session's work directory from inside the session's memory cgroup.

A file that the host itself wrote would be charged to the host. So the warden forks a process for each file: it joins
the cgroup that counts the session's memory, takes on the program's uid, and writes what arrives over its socket. It
runs outside the session's pid namespace, where no program can see or signal it.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from typing import Any

from belljar.jail import live_files, namespaces

DONE, NO_ROOM, IN_THE_WAY, FAILED = b"+", b"f", b"w", b"!"  # first byte of the answer; the rest is the reason
_CHUNK_BYTES = 1 << 16


def begin(order: dict[str, Any], descriptors: list[int]) -> int:
    """Fork the process that writes one file.

    `order` has the program's `uid`, the file's `path` and its size in `bytes`. The descriptors are: the stream socket
    for the content and the answer, the work directory, and the join file of the cgroup.
    """
    pid = os.fork()
    if pid:
        return pid
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        with socket.socket(fileno=os.dup(descriptors[0])) as peer:
            peer.sendall(_write(order, peer, descriptors[1], descriptors[2]))
    finally:
        os._exit(0)


def _write(order: dict[str, Any], peer: socket.socket, directory: int, joined: int) -> bytes:
    try:
        os.write(joined, b"0")
        os.setresgid(order["uid"], order["uid"], order["uid"])
        os.setresuid(order["uid"], order["uid"], order["uid"])
        namespaces.drop_capabilities()  # on an unprivileged server the uid does not change, which drops nothing
        os.umask(0o022)
        live_files.write(directory, order["path"], _received(peer, order["bytes"]))
    except live_files.NoRoom as error:
        return NO_ROOM + str(error).encode("utf-8", "replace")
    except live_files.NotThere:
        return IN_THE_WAY
    except OSError as error:
        return FAILED + str(error).encode("utf-8", "replace")
    return DONE


def _received(peer: socket.socket, size: int) -> Iterator[bytes]:
    while size:
        chunk = peer.recv(min(_CHUNK_BYTES, size))
        if not chunk:
            raise ConnectionError("the host has closed the connection")
        size -= len(chunk)
        yield chunk
