"""How a session is copied: namespaces are made, the session forks, and the copy is put into its cgroup and moves in.

The session's own process is hostile like any guest: it may answer anything, or nothing, or send another process than
the one it should have forked. All that it could gain is a second cgroup of the same size for its own processes, which
is what a branch is. The kernel reports which process sends over the new channel, and that the copy has kept no right
that it needed to move in; the guest is asked for neither.

What the guest does wrong is CannotBranch; every other error is a fault of Belljar or the machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import struct
from collections.abc import Awaitable, Callable, Iterator
from typing import NamedTuple

from belljar import channel
from belljar.aio import cancel_and_wait, wait_until_done, wait_until_readable
from belljar.backends.local.pool import descriptors
from belljar.backends.local.pool.jail_slots import JailSlot
from belljar.backends.local.pool.ready_guests import INTERPRETER_BYTES
from belljar.backends.local.pool.setns_gate import Gate, Pass, has_ended
from belljar.backends.local.pool.warden_handle import OutOfDescriptors, StartFailed
from belljar.backends.local.pool.zygotes import SESSION
from belljar.backends.local.session.process import BranchProcess, JailedProcess
from belljar.contract.errors import CannotBranch, JailSetupFailed, Overloaded, SandboxFault
from belljar.contract.execution import Limits
from belljar.jail.cgroups import JailCgroup

_PLACE_SECONDS = 20.0  # to make the namespaces: copying the files may take a while
_COPY_SECONDS = 5.0  # for each answer of the copy, and until it is alone in its cgroup
_SILENCE_SECONDS = 10.0  # for the session to answer the order to fork
_BIRTHS_AT_ONCE = 2  # the namespaces of the next branch are made while one moves in
_GENERATIONS_MAX = 15  # landlock has sixteen layers, and the jail itself is one; user namespaces nest 32 deep
_GRACE_SECONDS = 2.0  # for the session to answer when its copy has failed already
_LOOK_AGAIN_SECONDS, _LOOK_AGAIN_SECONDS_MAX = 0.001, 0.05
_SO_PASSPIDFD, _SCM_PIDFD = 76, 4  # since Linux 6.5
_SCM_CREDENTIALS = 2
_CREDENTIALS = struct.Struct("=iII")
_RIGHTS_MAX = 253  # descriptors that a packet can carry; there must be room for them or the pidfd has none
_ROOM = socket.CMSG_SPACE(_CREDENTIALS.size) + socket.CMSG_SPACE(4) + socket.CMSG_SPACE(_RIGHTS_MAX * 4)
_HELD, _CAPABILITY_SETS = re.compile(rb"^Cap(?:Inh|Prm|Eff|Amb):\s*([0-9a-f]+)$", re.MULTILINE), 4
_ODD = "the session's process did not copy itself as it should"


class Branch(NamedTuple):
    """A copy that is ready to be a session; the caller owns the descriptors."""

    process: BranchProcess
    directories: list[int]  # work directory, /tmp and /dev/shm
    pidfd: int


class _BranchPlace(NamedTuple):
    namespaces: list[int]  # user, mount, network and ipc
    directories: list[int]
    shield: list[int]  # a landlock ruleset, unless landlock was given up


class _Copy(NamedTuple):
    pid: int
    pidfd: int


class Branching:
    """The branches that one session is making of itself, and the orders to fork that it is sent for them."""

    def __init__(self, send: Callable[[bytes, list[int]], None], end: Callable[[str], None]) -> None:
        """`send` sends a packet with descriptors to the session, `end` ends it."""
        self.generation = 0  # how many branchings ago the session's family began
        self.under_way = 0
        self.births = asyncio.Semaphore(_BIRTHS_AT_ONCE)
        self.forking = asyncio.Lock()  # held while a copy still counts toward the session's own processes
        self._send = send
        self._end = end
        self._answer: asyncio.Future[str | None] | None = None  # why the session cannot fork; None: it has

    def check_generation(self) -> None:
        """Raises CannotBranch: the session is as many generations away from the first as the kernel can shield."""
        if self.generation >= _GENERATIONS_MAX:
            raise CannotBranch(
                f"it is {_GENERATIONS_MAX} branches away from where its family began, and the kernel shields no more "
                "generations from each other; branch one before it, or keep copies and go on in the original"
            )

    async def order(self, reseed: bool, descriptors: list[int]) -> None:
        """Have the session fork, with these descriptors, and wait for its answer.

        Raises:
            CannotBranch: it cannot, or it does not answer and was ended.
        """
        self._answer = asyncio.get_running_loop().create_future()
        try:
            self._send(channel.build({}, b"branch reseed" if reseed else b"branch"), descriptors)
            async with asyncio.timeout(_SILENCE_SECONDS):
                reason = await self._answer
        except asyncio.CancelledError:
            self._end("timeout")  # it did not answer: its state is not known any more
            raise
        except (TimeoutError, channel.ChannelClosed, BlockingIOError) as error:
            self._end("timeout")
            raise CannotBranch("the session did not answer when it was told to branch, and was ended") from error
        finally:
            self._answer = None
        if reason is not None:
            raise CannotBranch(reason.removeprefix("cannot "))

    def answer(self, blob: bytes) -> bool:
        """Take what the session has answered; return whether an answer was due."""
        if self._answer is None or self._answer.done():
            return False
        self._answer.set_result(None if blob == b"branched" else blob[:500].decode("utf-8", "replace"))
        return True

    def abandon(self, reason: str) -> None:
        """Fail an order that is under way: the session has ended."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(reason)


def check_quiet(cgroup: JailCgroup | None) -> JailCgroup:
    """Raise unless the session is one process with one thread: what a fork copies."""
    if cgroup is None:
        raise CannotBranch("a server without cgroups cannot branch sessions")
    if len(cgroup.processes()) > 1:
        raise CannotBranch("child processes are running; end them, wait for them, and branch then")
    if cgroup.tasks() > 1:  # processes that were not waited for are counted as well
        raise CannotBranch("other threads are alive, or child processes were not waited for; join them and branch then")
    return cgroup


async def copy_session(
    parent: JailedProcess,
    directories: list[int],
    limits: Limits,
    order: Callable[[list[int]], Awaitable[None]],
    forking: asyncio.Lock,
) -> Branch:
    """Copy a session; `order` has it fork, with the descriptors it needs, and waits for its answer.

    While `forking` is held, a copy still counts toward the session's own processes.

    Raises:
        CannotBranch: the session cannot be copied, or does not obey.
        Overloaded, JailSetupFailed, SandboxFault: this machine could not do it.
    """
    gate = parent.family.guest.zygote.gate
    if gate is None or gate.is_closed:
        raise CannotBranch("this machine cannot supervise a branch: it needs seccomp's user notification for itself")
    jail_slot = parent.family.guests.jail_slots.take()
    if jail_slot is None:
        raise Overloaded("no jail is free for a branch; try again later")
    assert jail_slot.cgroup is not None
    try:
        jail_slot.cgroup.limit(limits.memory_bytes + INTERPRETER_BYTES[SESSION], max(2, limits.processes))
        jail_slot.cgroup.begin()
        making = asyncio.create_task(_make_place(parent, jail_slot, directories, limits))
        try:
            return await _fork_and_move_in(parent, jail_slot, gate, making, order, forking)
        finally:
            await _drop(making)
    except BaseException as error:
        await _give_up(parent, jail_slot)
        if isinstance(error, TimeoutError):
            raise SandboxFault("the namespaces of the branch were not made in time") from error
        if isinstance(error, (OutOfDescriptors, channel.DescriptorsLost)) or descriptors.is_one(error):
            raise descriptors.refusal() from error
        if isinstance(error, (OSError, StartFailed)):
            raise JailSetupFailed("branch", str(error)) from error
        raise


async def _give_up(parent: JailedProcess, jail_slot: JailSlot) -> None:
    """Kill every process in the branch's cgroup and give the slot back, even if cancelled meanwhile."""
    assert jail_slot.cgroup is not None
    try:
        if not jail_slot.cgroup.is_empty():
            with contextlib.suppress(OSError):
                jail_slot.cgroup.kill_all()
            await _finish(asyncio.create_task(parent.family.empty(jail_slot.cgroup)))
    finally:
        parent.family.guests.jail_slots.give_back(jail_slot)


async def _make_place(
    parent: JailedProcess, jail_slot: JailSlot, directories: list[int], limits: Limits
) -> _BranchPlace:
    """Make the namespaces and directories of a branch; the first also makes the user namespace of all branches."""
    async with asyncio.timeout(_PLACE_SECONDS), parent.founding if parent.nest < 0 else contextlib.nullcontext():
        made = await _have_made(parent, jail_slot, directories, limits)
        try:
            if parent.nest < 0:
                parent.nest = os.dup(made[0])
        except OSError:
            for descriptor in made:
                os.close(descriptor)
            raise
    return _BranchPlace(made[:4], made[4:7], made[7:])


async def _have_made(parent: JailedProcess, jail_slot: JailSlot, directories: list[int], limits: Limits) -> list[int]:
    family, version = parent.family, parent.family.guests.walls.landlock_version
    count = 8 if version else 7
    assert jail_slot.cgroup is not None
    if not directories:
        raise CannotBranch("the session has ended")
    ours, theirs = channel.pair()
    ours.setblocking(False)
    with ours:
        above = os.dup(parent.nest) if parent.nest >= 0 else parent.open_home()
        request = {
            "uid": family.guest.jail.jail_slot.uid,
            "disk_bytes": limits.disk_bytes,
            "landlock_version": version,
            "joined": above is not None,
            "made": parent.nest < 0,
        }
        sent = [theirs.fileno(), family.guest.jail.jail_init, *directories, *([] if above is None else [above])]
        try:
            with theirs:
                _, maker = await family.guests.warden.make_branch_namespaces(
                    request, [*sent, *jail_slot.cgroup.join_files]
                )
        finally:
            if above is not None:
                os.close(above)
        try:
            await wait_until_readable(ours)
            message, _, made = channel.receive(ours, count)
        except channel.DescriptorsLost:
            raise
        except channel.ChannelClosed as error:
            if jail_slot.cgroup.oom_kills():  # it is in the branch's cgroup
                raise _do_not_fit() from error
            raise SandboxFault("the process that makes the namespaces of the branch has died") from error
        finally:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(maker, signal.SIGKILL)
            os.close(maker)
    if "uncopied" in message:
        raise CannotBranch(f"its files cannot be copied: {message['uncopied']}; remove some, or ask for more disk_mb")
    if len(made) != count:
        raise JailSetupFailed("branch", str(message.get("failed")))
    return made


async def _answered(what: str, *files: socket.socket | int) -> None:
    """Wait until a guest has said something over one of these, or has ended."""
    try:
        async with asyncio.timeout(_COPY_SECONDS):
            await wait_until_readable(*files)
    except TimeoutError as error:
        raise CannotBranch(f"{what} within {_COPY_SECONDS:.0f} s") from error


async def _fork_and_move_in(
    parent: JailedProcess,
    jail_slot: JailSlot,
    gate: Gate,
    making: asyncio.Task[_BranchPlace],
    order: Callable[[list[int]], Awaitable[None]],
    forking: asyncio.Lock,
) -> Branch:
    """Have the session fork while the namespaces are made, put the copy into its cgroup, and let it move in."""
    ours, theirs = channel.pair()
    ours.setblocking(False)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    ours.setsockopt(socket.SOL_SOCKET, _SO_PASSPIDFD, 1)
    sent: list[int] = []
    owned: list[int] = []  # stdout, stderr and pidfd, and then the directories
    try:
        for _ in range(2):
            read, write = os.pipe2(os.O_CLOEXEC)
            owned.append(read)
            sent.append(write)
            os.set_blocking(read, False)
            os.fchmod(read, 0o666)
        descriptors.keep_reserve(sent[-1])
        with gate.ordering():
            async with forking:
                family = [parent.nest] if parent.nest >= 0 else []
                with theirs:
                    await _have_forked(order([theirs.fileno(), *sent, *family]), _admit_passer(ours, jail_slot))
            copy = await _meet(ours, jail_slot)
        owned.append(copy.pidfd)
        with gate.expecting(copy.pid, copy.pidfd) as entry:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)
            ours.setsockopt(socket.SOL_SOCKET, _SO_PASSPIDFD, 0)
            place = await asyncio.shield(making)
            if _lives_in(copy.pid, place.namespaces[0]):
                raise CannotBranch(_ODD)  # it is not a fork of the session, but of one of its branches
            await _move_in(ours, copy, jail_slot, entry, [*place.namespaces[len(family) :], *place.shield])
        await _check_rights(copy, place.namespaces[0], jail_slot)
        for directory in place.directories:
            owned.append(os.dup(directory))
        stdout, stderr = owned[:2]
        process = BranchProcess(parent.family, jail_slot, ours, stdout, stderr, copy.pidfd, copy.pid)
        return Branch(process, owned[3:], copy.pidfd)
    except BaseException:
        ours.close()
        sent += owned
        raise
    finally:
        theirs.close()
        for descriptor in sent:
            os.close(descriptor)


async def _have_forked(ordered: Awaitable[None], admitted: Awaitable[None]) -> None:
    """Wait until the session reports that it has forked, after the process that forks was admitted."""
    ordering, admitting = asyncio.ensure_future(ordered), asyncio.ensure_future(admitted)
    try:
        await asyncio.wait([ordering, admitting], return_when=asyncio.FIRST_COMPLETED)
        if not ordering.done():
            has_failed = admitting.exception() is not None
            await asyncio.wait([ordering], timeout=_GRACE_SECONDS if has_failed else None)
        if admitting.done():
            admitting.result()
        if ordering.done():
            ordering.result()
        if not admitting.done() or not ordering.done():
            raise CannotBranch(_ODD)
    finally:
        await cancel_and_wait(ordering)
        await cancel_and_wait(admitting)


async def _move_in(peer: socket.socket, copy: _Copy, jail_slot: JailSlot, entry: Pass, place: list[int]) -> None:
    assert jail_slot.cgroup is not None
    try:
        channel.send(peer, {}, b"place", place)
        entry.grant()  # afterwards: the copy may wait for it already, and then wakes only once
        await _answered("the copy did not move into its place", peer, copy.pidfd)
        _, said, _ = channel.receive(peer, 0)
    except (channel.ChannelClosed, BlockingIOError) as error:  # the second: it has ended, and its channel is held
        if jail_slot.cgroup.oom_kills():
            raise _do_not_fit() from error
        raise CannotBranch("the copy has ended before it had its place") from error
    if said != b"joined":
        reason = said[:500].decode("utf-8", "replace")
        raise CannotBranch(f"the copy could not move into its place; it says: {reason}")


async def _check_rights(copy: _Copy, nest: int, jail_slot: JailSlot) -> None:
    """Check that the copy is alone in its cgroup, and holds none of the capabilities that it moved in with.

    The gate is shut by now. The copy, being where only the gate leads, has used its pass up, so no process can hold a
    capability but the copy and what it has forked since. To check the copy first and then for others misses none: a
    process that holds one at the first check is the copy, has ended by the second, or is seen by it.
    """
    cgroup = jail_slot.cgroup
    assert cgroup is not None
    loop = asyncio.get_running_loop()
    pause, until = _LOOK_AGAIN_SECONDS, loop.time() + _COPY_SECONDS
    while cgroup.tasks() > 1 and loop.time() < until:  # the process that forked the copy may not be reaped yet
        await asyncio.sleep(pause)
        pause = min(1.05 * pause, _LOOK_AGAIN_SECONDS_MAX)
    keeps_rights = not _lives_in(copy.pid, nest) or _holds_capabilities(copy.pid)
    is_alone = cgroup.tasks() == 1
    if has_ended(copy.pidfd):
        raise CannotBranch("the copy has ended at once")
    if keeps_rights:
        raise CannotBranch("the copy did not give up the rights that it moved in with")
    if not is_alone:
        raise CannotBranch("the copy, or the process that forked it, has left other processes behind")


def _lives_in(pid: int, user_namespace: int) -> bool:
    try:
        own = os.readlink(f"/proc/{pid}/ns/user")  # noqa: PTH115  (on the path of every branch)
    except (FileNotFoundError, ProcessLookupError):
        return False  # it has ended
    return own == f"user:[{os.fstat(user_namespace).st_ino}]"


def _holds_capabilities(pid: int) -> bool:
    try:
        status = os.open(f"/proc/{pid}/status", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False  # it has ended
    try:
        held = _HELD.findall(os.read(status, 8192))
    except ProcessLookupError:
        return False
    finally:
        os.close(status)
    return len(held) != _CAPABILITY_SETS or any(int(each, 16) for each in held)


async def _drop(making: asyncio.Task[_BranchPlace]) -> None:
    """Close our descriptors of what was made: the copy of the session has its own."""
    await cancel_and_wait(making)
    if not making.cancelled() and making.exception() is None:
        for each in making.result():
            for descriptor in each:
                os.close(descriptor)


async def _finish(task: asyncio.Task[None]) -> None:
    """Wait for the end of `task` even if cancelled."""
    cancelled = await wait_until_done(task)
    task.result()
    if cancelled is not None:
        raise cancelled


def _do_not_fit() -> CannotBranch:
    return CannotBranch("the files do not fit into a branch; remove some, or open sessions with more memory_mb")


async def _admit_passer(peer: socket.socket, jail_slot: JailSlot) -> None:
    """Put the process that forks the copy into the branch's cgroup, and let it go on. It ends when it has forked."""
    await wait_until_readable(peer)  # as long as the session may take to answer
    with _sender(_receive(peer, b"passing")) as (pid, pidfd):
        assert jail_slot.cgroup is not None
        admit(jail_slot.cgroup, pid, pidfd)
        try:
            channel.send(peer, {}, b"admitted")
        except channel.ChannelClosed as error:
            raise CannotBranch(_ODD) from error


def admit(cgroup: JailCgroup, pid: int, pidfd: int) -> None:
    """Put the process behind `pidfd`, which has the number `pid`, into a cgroup.

    The kernel takes only the number. If the process has ended, another may have that number by now, so the pidfd is
    checked again afterwards, and a process that was moved by mistake is put back before any in the cgroup is killed.

    Raises:
        CannotBranch: it has ended.
    """
    if not has_ended(pidfd):
        with contextlib.suppress(ProcessLookupError):
            cgroup.admit(pid)
        if not has_ended(pidfd):
            return
        cgroup.put_back(pid)
    raise CannotBranch("the process that should have forked the copy has ended")


async def _meet(peer: socket.socket, jail_slot: JailSlot) -> _Copy:
    """Read the copy's first message, and check that it is in its cgroup. The caller owns the pidfd."""
    await _answered("the copy said nothing", peer)
    with _sender(_receive(peer, b"copy")) as (pid, pidfd):
        if jail_slot.cgroup is None or pid not in jail_slot.cgroup.processes():
            raise CannotBranch(_ODD)
        if has_ended(pidfd):  # checked last: else the number may have been another's before
            raise CannotBranch("the copy has ended at once")
        return _Copy(pid, os.dup(pidfd))


class _Message(NamedTuple):
    is_due: bool
    pid: int
    pidfd: int


def _receive(peer: socket.socket, due: bytes) -> _Message:
    """Read one message, and which process has sent it, as the kernel reports that."""
    try:
        packet, ancillary, flags, _ = peer.recvmsg(channel.PACKET_BYTES_MAX, _ROOM, socket.MSG_CMSG_CLOEXEC)
    except ConnectionError as error:
        raise CannotBranch(_ODD) from error
    pid, pidfd = 0, -1
    planted = channel.descriptors_in(ancillary)
    for descriptor in planted:  # unwanted, and what they hold would outlive the session here
        os.close(descriptor)
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == _SCM_CREDENTIALS:
            pid = _CREDENTIALS.unpack(content[: _CREDENTIALS.size])[0]
        elif level == socket.SOL_SOCKET and kind == _SCM_PIDFD:
            (pidfd,) = struct.unpack("=i", content[:4])
    is_due = packet == channel.build({}, due) and not planted and not flags & socket.MSG_CTRUNC
    return _Message(is_due, pid, pidfd)


@contextlib.contextmanager
def _sender(message: _Message) -> Iterator[tuple[int, int]]:
    """Pid and pidfd of the sender; one that sent something else, or fails later, is killed."""
    try:
        if message.pid <= 1 or message.pidfd < 0 or not message.is_due:
            raise CannotBranch(_ODD)
        yield message.pid, message.pidfd
    except BaseException:
        if message.pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(message.pidfd, signal.SIGKILL)
        raise
    finally:
        if message.pidfd >= 0:
            os.close(message.pidfd)
