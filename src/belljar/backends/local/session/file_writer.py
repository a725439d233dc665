"""Files that a caller puts into a live session: written by a process in the session's memory cgroup, and counted there.

A file that is larger than the memory the session has left is refused before a byte is written, where a program that
wrote it itself would be killed. If the program takes that memory meanwhile, the session ends as it then would anyway.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket

from belljar.aio import wait_until_done, wait_until_readable
from belljar.backends.local.pool import descriptors
from belljar.backends.local.pool.warden_handle import OutOfDescriptors, StartFailed
from belljar.backends.local.session.process import SessionProcess
from belljar.contract.errors import JailSetupFailed, SandboxFault
from belljar.inside.warden import file_writer
from belljar.jail import live_files
from belljar.jail.cgroups import JailCgroup

_OVERHEAD_BYTES = 4 << 20  # what the process that writes copies for itself, and the kernel's notes on pages
_ANSWER_BYTES = 1024
_SECONDS = 60.0


async def put(body: SessionProcess, cgroup: JailCgroup, directory: int, path: str, content: bytes) -> None:
    """Make or replace a file.

    Raises:
        workfiles.NoRoom: memory or directory have no room for it. workfiles.NotThere: something is in the way.
        JailSetupFailed, SandboxFault: it could not be tried.
    """
    room = cgroup.room_bytes() - _OVERHEAD_BYTES
    if len(content) > room:
        raise live_files.NoRoom(f"the session's memory has room for {max(0, room):,} more bytes")
    answer = await _have_written(body, cgroup, directory, path, content)
    kind, reason = answer[:1], answer[1:].decode("utf-8", "replace")
    if kind == file_writer.NO_ROOM:
        raise live_files.NoRoom(reason)
    if kind == file_writer.IN_THE_WAY:
        raise live_files.NotThere(path)
    if kind != file_writer.DONE:
        raise SandboxFault(f"{path} could not be written: {reason or 'the process that writes it has died'}")


async def _have_written(body: SessionProcess, cgroup: JailCgroup, directory: int, path: str, content: bytes) -> bytes:
    """What the process that writes has to say, after its end; b"" if it was killed."""
    order = {"uid": body.family.guest.jail.jail_slot.uid, "path": path, "bytes": len(content)}
    loop = asyncio.get_running_loop()
    try:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            lent = [theirs.fileno(), directory, cgroup.memory_join]
            _, writer = await body.family.pool.deposit(order, lent)
            theirs.close()
            try:
                async with asyncio.timeout(_SECONDS):
                    with contextlib.suppress(ConnectionError):  # it has said why before it had read all
                        await loop.sock_sendall(ours, content)
                    with contextlib.suppress(ConnectionError):
                        return await loop.sock_recv(ours, _ANSWER_BYTES)
                    return b""
            finally:
                await _end(writer)
    except OutOfDescriptors as error:
        raise descriptors.refusal() from error
    except StartFailed as error:
        raise JailSetupFailed("file", str(error)) from error
    except TimeoutError as error:
        raise SandboxFault(f"{path} was not written in time") from error
    except OSError as error:
        if descriptors.is_one(error):
            raise descriptors.refusal() from error
        raise JailSetupFailed("file", str(error)) from error


async def _end(writer: int) -> None:
    """Kill it if it is still there, and wait: it holds memory on the session's account. Closes the pidfd."""
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(writer, signal.SIGKILL)
    cancelled = await wait_until_done(asyncio.ensure_future(wait_until_readable(writer)))
    os.close(writer)
    if cancelled is not None:
        raise cancelled
