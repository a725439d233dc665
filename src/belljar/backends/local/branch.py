"""How a session is copied: a place is made, the session forks, and who comes out of that is put into its cgroup.

The session's own process is hostile like any guest: it may answer anything, or nothing, or send another process than
the one it should have forked. What it could gain by that is a second cgroup of the same size for its own processes,
which is what a branch is. Who speaks over the new channel is told by the kernel, never by the speaker.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import struct
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, NamedTuple

from belljar import channel
from belljar.backends.local.bodies import BranchBody, Family, has_ended
from belljar.backends.local.cells import Berth
from belljar.backends.local.world import INTERPRETER_BYTES
from belljar.contract.errors import CannotBranch, JailSetupFailed, Overloaded, SandboxFault
from belljar.contract.execution import Limits
from belljar.jail.cgroups import CellCgroup
from belljar.zygote.handle import StartFailed

_LOOKS, _LOOK_AGAIN_SECONDS = 200, 0.001
_SECONDS = 20.0  # for all of it: the copy of the files may take its time
_SO_PASSPIDFD, _SCM_PIDFD = 76, 4  # since Linux 6.5
_SCM_CREDENTIALS = 2
_CREDENTIALS = struct.Struct("=iII")
_RIGHTS_MAX = 253  # descriptors that a packet can carry; there must be room for them or the pidfd has none
_ROOM = socket.CMSG_SPACE(_CREDENTIALS.size) + socket.CMSG_SPACE(4) + socket.CMSG_SPACE(_RIGHTS_MAX * 4)


class Grown(NamedTuple):
    """A branch that is ready to be a session; whoever gets it owns the descriptors."""

    body: BranchBody
    directories: list[int]  # work directory, /tmp and /dev/shm
    pidfd: int


class _Place(NamedTuple):
    namespaces: list[int]
    directories: list[int]


def check_quiet(cgroup: CellCgroup | None) -> CellCgroup:
    """Raise unless the session is one process with one thread: what a fork copies."""
    if cgroup is None:
        raise CannotBranch("a server without cgroups cannot branch sessions")
    if len(cgroup.processes()) > 1:
        raise CannotBranch("child processes are running; end them, wait for them, and branch then")
    if cgroup.tasks() > 1:  # who has ended and was not waited for is counted as well
        raise CannotBranch("other threads are alive, or child processes were not waited for; join them and branch then")
    return cgroup


async def grow(
    family: Family,
    directories: list[int],
    limits: Limits,
    order: Callable[[list[int]], Awaitable[None]],
    forking: asyncio.Lock,
) -> Grown:
    """Copy a session; `order` tells it to fork, with the descriptors it needs, and waits for its answer.

    Who holds `forking` has its copy still on the session's own account of processes.

    Raises:
        CannotBranch: the session says that it cannot be copied.
        Overloaded, JailSetupFailed, SandboxFault: it could not be done.
    """
    berth = family.world.take_berth()
    if berth is None:
        raise Overloaded("no cell is free for a branch; try again later")
    try:
        assert berth.cgroup is not None
        berth.cgroup.limit(limits.memory_bytes + INTERPRETER_BYTES["shell"], max(2, limits.processes))
        berth.cgroup.begin()
        async with asyncio.timeout(_SECONDS):
            making = asyncio.create_task(_make_place(family, berth, directories, limits))
            try:
                return await _settle(family, berth, making, order, forking)
            finally:
                await _drop(making)
    except BaseException as error:
        await _empty(berth)
        family.world.give_back(berth)
        if isinstance(error, TimeoutError):
            raise SandboxFault("the branch was not there in time") from error
        if isinstance(error, (OSError, StartFailed, channel.ChannelClosed)):
            raise JailSetupFailed("branch", str(error)) from error
        raise


async def _empty(berth: Berth) -> None:
    while berth.cgroup is not None and not berth.cgroup.is_empty():
        berth.cgroup.kill_all()
        await asyncio.sleep(0.002)


async def _make_place(family: Family, berth: Berth, directories: list[int], limits: Limits) -> _Place:
    """Namespaces and directories for one branch; the first also makes the family's user namespace, before any other."""
    async with family.founding if family.user_namespace < 0 else contextlib.nullcontext():
        own, *made = await _have_made(family, berth, directories, limits)
        if family.user_namespace < 0:
            family.user_namespace = own
        else:
            os.close(own)
    return _Place(made[:3], made[3:])


async def _have_made(family: Family, berth: Berth, directories: list[int], limits: Limits) -> list[int]:
    ours, theirs = channel.pair()
    ours.setblocking(False)
    has_own = family.user_namespace >= 0
    asked = {"uid": family.guest.cell.berth.uid, "disk_bytes": limits.disk_bytes, "has_own": has_own}
    assert berth.cgroup is not None
    lent = [theirs.fileno(), family.guest.cell.sleeper, *directories]
    lent += [family.user_namespace] if has_own else []
    with ours:
        with theirs:
            _, maker = await family.world.graft(asked, [*lent, *berth.cgroup.join_files])
        try:
            message, _, made = await _receive(ours, 7)
        except channel.ChannelClosed as error:
            if berth.cgroup.oom_kills():  # it is in the branch's cgroup
                raise _do_not_fit() from error
            raise SandboxFault("the process that makes the branch's place has died") from error
        finally:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(maker, signal.SIGKILL)
            os.close(maker)
    if len(made) != 7:
        raise JailSetupFailed("branch", str(message.get("failed")))
    return made


async def _receive(peer: socket.socket, descriptors_max: int) -> tuple[dict[str, object], bytes, list[int]]:
    await _readable(peer)
    return channel.receive(peer, descriptors_max)


async def _readable(peer: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    arrived = asyncio.Event()
    loop.add_reader(peer, arrived.set)
    try:
        await arrived.wait()
    finally:
        loop.remove_reader(peer)


async def _settle(
    family: Family,
    berth: Berth,
    making: asyncio.Task[_Place],
    order: Callable[[list[int]], Awaitable[None]],
    forking: asyncio.Lock,
) -> Grown:
    """Have the session fork while the place is made, put the copy into its cgroup, and let it move in."""
    ours, theirs = channel.pair()
    ours.setblocking(False)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    ours.setsockopt(socket.SOL_SOCKET, _SO_PASSPIDFD, 1)
    lent: list[int] = []
    owned: list[int] = []  # stdout, stderr and pidfd, and then the directories
    try:
        for _ in range(2):
            read, write = os.pipe2(os.O_CLOEXEC)
            owned.append(read)
            lent.append(write)
            os.set_blocking(read, False)
            os.fchmod(read, 0o666)
        async with forking:
            passing = asyncio.create_task(_admit_passer(ours, berth))
            try:
                with theirs:
                    await order([theirs.fileno(), *lent])
                await passing
            finally:
                await _end(passing)
        owned.append(await _meet(ours, berth))
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)
        ours.setsockopt(socket.SOL_SOCKET, _SO_PASSPIDFD, 0)
        place = await asyncio.shield(making)
        await _move_in(ours, family, berth, place)
        await _alone(berth)
        for directory in place.directories:
            owned.append(os.dup(directory))
        return Grown(BranchBody(family, berth, ours, *owned[:3]), owned[3:], owned[2])
    except BaseException:
        ours.close()
        lent += owned
        raise
    finally:
        theirs.close()
        for descriptor in lent:
            os.close(descriptor)


async def _alone(berth: Berth) -> None:
    """Wait until who has forked the copy is buried: else it could not be branched at once, not being alone."""
    for _ in range(_LOOKS):
        if berth.cgroup is None or berth.cgroup.tasks() <= 1:
            return
        await asyncio.sleep(_LOOK_AGAIN_SECONDS)


async def _move_in(peer: socket.socket, family: Family, berth: Berth, place: _Place) -> None:
    try:
        channel.send(peer, {}, b"place", [family.user_namespace, *place.namespaces])
        _, said, _ = await _receive(peer, 0)
    except channel.ChannelClosed as error:
        if berth.cgroup is not None and berth.cgroup.oom_kills():
            raise _do_not_fit() from error
        raise CannotBranch("the copy has ended before it had its place") from error
    if said != b"joined":
        raise JailSetupFailed("branch", said[:500].decode("utf-8", "replace"))


async def _drop(making: asyncio.Task[_Place]) -> None:
    """Close our copies of what was made: whoever uses it has copies of its own."""
    await _end(making)
    if not making.cancelled() and making.exception() is None:
        for descriptor in (*making.result().namespaces, *making.result().directories):
            os.close(descriptor)


async def _end(task: asyncio.Task[Any]) -> None:
    task.cancel()
    while not task.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([task])
    if not task.cancelled():
        task.exception()  # whoever waited for it has heard of it


def _do_not_fit() -> CannotBranch:
    return CannotBranch("the files do not fit into a branch; remove some, or open sessions with more memory_mb")


async def _admit_passer(peer: socket.socket, berth: Berth) -> None:
    """Put whoever forks the copy into the branch's cgroup, and let it go on. It ends when the copy is there."""
    with _speaker(await _hear(peer, b"passing")) as (pid, _):
        assert berth.cgroup is not None
        berth.cgroup.admit(pid)
    channel.send(peer, {}, b"admitted")


async def _meet(peer: socket.socket, berth: Berth) -> int:
    """Hear the copy's first word, and see that it is where it should be. The caller owns the pidfd."""
    with _speaker(await _hear(peer, b"copy")) as (pid, pidfd):
        if berth.cgroup is None or pid not in berth.cgroup.processes() or has_ended(pidfd):
            raise CannotBranch("the copy has ended at once")
        return os.dup(pidfd)


class _Word(NamedTuple):
    is_due: bool
    pid: int
    pidfd: int


async def _hear(peer: socket.socket, due: bytes) -> _Word:
    """One word, and who has said it: by the kernel's word, not by the speaker's."""
    await _readable(peer)
    packet, ancillary, flags, _ = peer.recvmsg(channel.PACKET_BYTES_MAX, _ROOM, socket.MSG_CMSG_CLOEXEC)
    pid, pidfd = 0, -1
    planted = channel.descriptors_in(ancillary)
    for descriptor in planted:  # nobody has asked for them, and what they hold would outlive the session here
        os.close(descriptor)
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == _SCM_CREDENTIALS:
            pid = _CREDENTIALS.unpack(content[: _CREDENTIALS.size])[0]
        elif level == socket.SOL_SOCKET and kind == _SCM_PIDFD:
            (pidfd,) = struct.unpack("=i", content[:4])
    is_due = packet == channel.build({}, due) and not planted and not flags & socket.MSG_CTRUNC
    return _Word(is_due, pid, pidfd)


@contextlib.contextmanager
def _speaker(word: _Word) -> Iterator[tuple[int, int]]:
    """Pid and pidfd of who has spoken; who has said something else, or went wrong later, is ended."""
    try:
        if word.pid <= 1 or word.pidfd < 0 or not word.is_due:
            raise CannotBranch("the session's process did not copy itself as it should")
        yield word.pid, word.pidfd
    except BaseException:
        if word.pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(word.pidfd, signal.SIGKILL)
        raise
    finally:
        if word.pidfd >= 0:
            os.close(word.pidfd)
