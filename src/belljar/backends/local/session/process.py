"""The process of a session: a guest of a zygote, or a branch that a session has made of itself.

A family is a session and its branches. They share the first one's jail: its pid namespace and its uid. Everything else
each has for itself, above all its cgroup: one member is ended by killing every process in its cgroup, and the jail goes
when the last member has gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import signal
import socket
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from belljar import channel
from belljar.backends.local.pool import descriptors
from belljar.backends.local.pool.guests import Guest
from belljar.backends.local.pool.jail_slots import JailSlot
from belljar.backends.local.pool.ready_guests import FIRST_WORD_DESCRIPTORS, ReadyGuests
from belljar.backends.local.pool.setns_gate import has_ended
from belljar.backends.local.run import artifacts
from belljar.jail import live_files, workdir
from belljar.jail.cgroups import JailCgroup

_SILENCE_SECONDS = 10.0
_DYING_SECONDS = 5.0  # for processes that were killed
_LOOK_AGAIN_SECONDS, _LOOK_AGAIN_SECONDS_MAX = 0.002, 0.25  # meanwhile, less and less often
_PIDFD_GET_INFO = 3 << 30 | 64 << 16 | 0xFF << 8 | 11  # with the first version of its structure, of 64 bytes
_PIDFD_INFO_EXIT = 1 << 3  # since Linux 6.15
_WALKS = (live_files.entries, workdir.collect)  # work on a whole tree


class SessionProcess(ABC):
    """One process, its sockets and pipes, and every process that it has started. `release` gives all of it back."""

    channel: channel.Peer
    stdout: int
    stderr: int
    cgroup: JailCgroup | None
    first_descriptors = FIRST_WORD_DESCRIPTORS  # that come with its first message at least: its directories and a pidfd

    def __init__(self) -> None:
        self.ended: Callable[[int | None], None] = lambda status: None  # its own process has; the wait status if known
        self.memory_event: Callable[[], None] = lambda: None

    @abstractmethod
    def was_lost(self) -> bool:
        """Whether it was ended from outside, with its pool or its jail."""

    @abstractmethod
    def check_directories(self, directories: list[int]) -> None:
        """Raise SandboxFault if these, which it has handed over, were not mounted for it."""

    @abstractmethod
    def oom_kills(self) -> int:
        """How many of its processes were killed for lack of memory."""

    @abstractmethod
    async def on_work_dir(self, root: int, work: Callable[..., Any], *args: Any) -> Any:
        """Call a function of `workdir` or `live_files` on its work directory, with its rights.

        `root` is the directory's descriptor, of which a copy is used.
        """

    def interrupt(self, pidfd: int) -> None:
        """Send it SIGINT; `pidfd` came with its first message, -1 if that has not come."""
        if pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGINT)

    @abstractmethod
    def kill(self) -> None:
        """Kill it and every process that it has started."""

    @abstractmethod
    async def gone(self) -> None:
        """Wait until every process that was killed is dead."""

    @abstractmethod
    async def release(self) -> None:
        """Give everything back: all processes are dead and everything was read."""


class SessionFamily:
    """The sessions that live in one jail."""

    def __init__(self, guests: ReadyGuests, guest: Guest) -> None:
        self.guests = guests
        self.guest = guest
        self.members: set[JailedProcess] = set()

    async def leave(self, member: JailedProcess) -> None:
        """Remove a member; the last one takes the jail with it."""
        self.members.discard(member)
        if not self.members:
            self.guest.jail.kill()
            await self.jail_gone()
            self.guests.release(self.guest)

    async def empty(self, cgroup: JailCgroup) -> None:
        """Wait until every process in a member's cgroup, which the caller has killed, is dead and reaped.

        A process that has ended stays in its cgroup until its parent has waited for it, and the parent may be another
        member that never does. After a while the whole family is ended, which takes no member's consent.
        """
        clock = self.guests.loop.time
        pause, until = _LOOK_AGAIN_SECONDS, clock() + _DYING_SECONDS
        while not cgroup.is_empty():
            if self.guest.jail.is_killed or clock() > until:
                self.guest.jail.kill()
                await self.jail_gone()
                return
            await asyncio.sleep(pause)
            pause = min(1.1 * pause, _LOOK_AGAIN_SECONDS_MAX)  # most are dead after a few milliseconds
            if not cgroup.is_empty():
                with contextlib.suppress(OSError):
                    cgroup.kill_all()

    async def jail_gone(self) -> None:
        """Wait until no process is left in the killed jail; a zygote or warden that does not report it is ended."""
        jail = self.guest.jail
        while not jail.is_gone:
            await asyncio.wait([jail.gone], timeout=_SILENCE_SECONDS)
            if not jail.is_gone:
                self.guests.unstick(self.guest)


class JailedProcess(SessionProcess):
    """A member of a family, in a jail of this machine."""

    def __init__(
        self, family: SessionFamily, cgroup: JailCgroup | None, peer: channel.Peer, stdout: int, stderr: int
    ) -> None:
        super().__init__()
        self.family = family
        self.cgroup = cgroup
        self.channel = peer
        self.stdout = stdout
        self.stderr = stderr
        self.nest = -1  # the user namespace of its branches, once it has any
        self.founding = asyncio.Lock()  # held while that is made
        family.members.add(self)

    def was_lost(self) -> bool:
        return self.family.guests.is_lost or self.family.guest.jail.was_taken_away()

    def check_directories(self, directories: list[int]) -> None:
        self.family.guests.walls.check_dirs(directories)

    def oom_kills(self) -> int:
        return 0 if self.cgroup is None else self.cgroup.oom_kills()

    async def on_work_dir(self, root: int, work: Callable[..., Any], *args: Any) -> Any:
        owner = self.family.guests.owner_of(self.family.guest.jail.jail_slot)
        on_thread = artifacts.on_walking_thread if work in _WALKS else artifacts.on_thread
        with descriptors.named():
            return await on_thread(root, owner, work, *args)

    def kill(self) -> None:
        if self.cgroup is None or len(self.family.members) == 1:
            self.family.guest.jail.kill()
        else:
            with contextlib.suppress(OSError):  # no descriptors left: `empty` tries again, and then ends the family
                self.cgroup.kill_all()

    async def gone(self) -> None:
        if self.family.guest.jail.is_killed or self.cgroup is None:
            await self.family.jail_gone()
            return
        await self.family.empty(self.cgroup)

    def open_home(self) -> int | None:
        """The user namespace it lives in, which the caller owns; None: that of all guests."""
        return None

    async def release(self) -> None:
        if self.nest >= 0:
            os.close(self.nest)
            self.nest = -1
        await self.family.leave(self)


class FirstProcess(JailedProcess):
    """A guest of a zygote."""

    def __init__(self, guests: ReadyGuests, guest: Guest) -> None:
        super().__init__(
            SessionFamily(guests, guest), guest.jail.jail_slot.cgroup, guest.channel, guest.stdout, guest.stderr
        )
        guest.channel.setblocking(False)
        guest.ended = lambda status, _: self.ended(status)
        guest.jail.on_memory_event = lambda: self.memory_event()
        guests.keep(guest)

    async def release(self) -> None:
        """Leave its sockets open until the jail goes."""
        self.family.guest.jail.on_memory_event = None
        await super().release()


class BranchProcess(JailedProcess):
    """A copy that a session has made of itself. Not a child of the warden: its end is seen through its pidfd."""

    def __init__(
        self,
        family: SessionFamily,
        jail_slot: JailSlot,
        peer: socket.socket,
        stdout: int,
        stderr: int,
        pidfd: int,
        pid: int,
    ) -> None:
        self._pidfd = os.dup(pidfd)  # first: a process that fails here is not a member of the family
        super().__init__(family, jail_slot.cgroup, peer, stdout, stderr)
        self._pid = pid
        self._jail_slot = jail_slot
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._pidfd, self._on_end)
        if jail_slot.cgroup is not None and jail_slot.cgroup.oom_event is not None:
            self._loop.add_reader(jail_slot.cgroup.oom_event, self._on_memory_event, jail_slot.cgroup.oom_event)

    def open_home(self) -> int | None:
        """The process has not left it since it moved in: the jail does not let it."""
        home = os.open(f"/proc/{self._pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        if has_ended(self._pidfd):
            os.close(home)
            raise ProcessLookupError(errno.ESRCH, "the session's process has ended")
        return home

    def _on_end(self) -> None:
        self._loop.remove_reader(self._pidfd)
        self.ended(exit_status(self._pidfd))

    def _on_memory_event(self, event: int) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(event)
        self.memory_event()

    async def release(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        if self._jail_slot.cgroup is not None and self._jail_slot.cgroup.oom_event is not None:
            self._loop.remove_reader(self._jail_slot.cgroup.oom_event)
        self.channel.close()
        os.close(self.stdout)
        os.close(self.stderr)
        self.family.guests.jail_slots.give_back(self._jail_slot)
        await super().release()


def exit_status(pidfd: int) -> int | None:
    """The wait status of the process behind a pidfd; None if this kernel does not report it."""
    asked = struct.pack("=Q56x", _PIDFD_INFO_EXIT)
    try:
        answer = fcntl.ioctl(pidfd, _PIDFD_GET_INFO, asked)
    except OSError:
        return None
    (mask,) = struct.unpack_from("=Q", answer)
    (status,) = struct.unpack_from("=i", answer, 60)
    return int(status) if mask & _PIDFD_INFO_EXIT else None
