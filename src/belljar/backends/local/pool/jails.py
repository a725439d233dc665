"""Jails: the parts of a jail that are dear to make, made ahead and empty.

A jail is a pid namespace, a network namespace with a loopback of its own, an ipc namespace and a mount namespace with
the three directories that a program may write to, all held by a process that sleeps; a cgroup; a socket over which its
guests get their programs; and a uid that no other jail has. A guest joins it; afterwards it is used again only if it is
as it was: nobody left in it, nothing unread in its socket, nothing ever sent over its loopback, no queue, semaphore or
shared memory, no file. A few plain files are taken away, for more the directories are mounted anew; for any other
difference, and in doubt, the jail is thrown away.

A guest can make its jail's directories neither another's nor its own, nor change their mode, labels or flags: they
belong to the root of its pool. What it has left is therefore all in them, and they count what is in them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Sequence
from os import fstat, pread, unlink
from pathlib import Path

from belljar import channel
from belljar.backends.local.pool.warden_handle import WardenHandle
from belljar.jail import policy
from belljar.jail.cgroups import Cgroups, JailCgroup

JAILS_MAX = 1024
_FACTS = 7  # the first ones of a directory: mode, inode, device, links, owner, group, and a size that counts entries
_DIRS, _PROGRAM = policy.WRITABLE_DIRS, policy.PROGRAM_NAME
_IPC_RECORDS = 4  # as `mounts.open_ipc_records` gives them
_FLAGS, _PF_EXITING = 6, 0x4  # among what follows the name in /proc/PID/stat
_FEW_FILES_BYTES = 16 * 20  # a directory grows by so much for each entry


class JailSlot:
    """The number of a jail with its uid and its cgroup, which outlive the namespaces that come and go in it."""

    def __init__(self, number: int, cgroup: JailCgroup | None, first_uid: int = policy.GUEST_UID_FIRST) -> None:
        self.number = number
        self.uid = first_uid + number
        self.cgroup = cgroup


class JailSlots:
    """Every berth of this instance. Free ones beyond `kept` are given up: bursts of kills leave no trace."""

    def __init__(
        self, cgroups: Cgroups | None, changes_uid: bool, kept: int, first_uid: int = policy.GUEST_UID_FIRST
    ) -> None:
        self.first_uid = first_uid
        self._cgroups = cgroups
        self._changes_uid = changes_uid
        self._kept = kept
        self._free: list[JailSlot] = []
        self._made: dict[int, JailSlot] = {}

    def take(self) -> JailSlot | None:
        """A free berth, or None when all are in use."""
        for index, jail_slot in enumerate(self._free):
            if jail_slot.cgroup is not None and jail_slot.cgroup.is_empty() and not jail_slot.cgroup.is_pristine():
                jail_slot.cgroup.reclaim()
            if jail_slot.cgroup is None or jail_slot.cgroup.is_pristine():
                return self._free.pop(index)
        if len(self._made) >= JAILS_MAX:
            return None
        number = next(number for number in range(JAILS_MAX) if number not in self._made)
        jail_slot = JailSlot(number, self._cgroups.jail(number) if self._cgroups else None, self.first_uid)
        if not self._changes_uid:
            jail_slot.uid = policy.GUEST_UID_FIRST
        self._made[number] = jail_slot
        return jail_slot

    def give_back(self, jail_slot: JailSlot) -> None:
        """The namespaces of this berth are gone."""
        self._free.append(jail_slot)
        for each in self._free[: -self._kept]:
            if each.cgroup is None or each.cgroup.remove():
                self._free.remove(each)
                del self._made[each.number]

    def close(self) -> None:
        """Close every cgroup's files."""
        for jail_slot in self._made.values():
            if jail_slot.cgroup is not None:
                jail_slot.cgroup.close()
        self._made.clear()
        self._free.clear()


class Jail:
    """A berth with live namespaces. Owns the pidfd of its jail_init and, through it, everyone inside."""

    def __init__(
        self, jail_slot: JailSlot, warden: WardenHandle, pid: int, made: Sequence[int], on_gone: Callable[[Jail], None]
    ) -> None:
        """`made` is what the warden has given; it is ours unless this raises."""
        self.jail_slot = jail_slot
        self.jail_init = made[0]
        self.is_gone = False
        self.is_killed = False  # killed, though the news of its end may not have come yet
        self.is_leased = False  # a guest is in it, or its run is still being read
        self.is_unread = False  # a program was sent to its guest, who has not said that it has it
        self.is_vacated = False  # its guest has ended and nobody else was in it: whoever comes is sent by us
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.on_memory_event: Callable[[], None] | None = None
        self._on_gone = on_gone
        # One for all guests, one after the other: no program ever holds it, and a socket that is passed around has the
        # kernel look for lost ones whenever any is closed.
        self.channel, self._their_channel = channel.bare_pair()
        try:
            counters = _open_traffic_counters(self.jail_init)
        except BaseException:
            self.close()
            raise
        self._records = [(file, *_read_counters(file)) for file in counters]
        self._queues = -1
        self._queues_before: tuple[float, ...] = ()
        fresh = made[1 + _IPC_RECORDS :]  # with an ipc namespace, or there is neither
        self._dirs, self._rules = [*fresh[: len(_DIRS)]], [*fresh[len(_DIRS) :]]
        self._dirs_before = [fstat(directory)[:_FACTS] for directory in self._dirs]
        if self._dirs:
            *tables, self._queues = made[1 : 1 + _IPC_RECORDS]
            self._records += [(file, *_read_counters(file)) for file in tables]
            self._queues_before = fstat(self._queues)[:_FACTS]
        if jail_slot.cgroup is not None and jail_slot.cgroup.oom_event is not None:
            asyncio.get_running_loop().add_reader(jail_slot.cgroup.oom_event, self._memory_event)
        warden.watch(pid, self._sleeper_ended)

    @property
    def number(self) -> int:
        """Its berth's number."""
        return self.jail_slot.number

    def descriptors(self, stays: bool) -> list[int]:
        """What a zygote needs to put a guest, or a session, here; the third is a ruleset, if it `has_rules`."""
        cgroup = self.jail_slot.cgroup
        joined = (*cgroup.join_files, *(cgroup.shares_join if stays else ())) if cgroup else ()
        return [self.jail_init, self._their_channel.fileno(), *self._rules, *joined]

    @property
    def has_rules(self) -> bool:
        """Whether landlock's rules about its directories are made already."""
        return bool(self._rules)

    @property
    def has_dirs(self) -> bool:
        """Whether guests can take directories and an ipc namespace that are the jail's own."""
        return bool(self._dirs)

    def is_pristine(self) -> bool:
        """Whether the next guest would find nothing of the last one. Without a cgroup nobody can tell.

        Memory is looked at before files are: of those that take little of it, few may be taken away here and now.
        """
        cgroup = self.jail_slot.cgroup
        return cgroup is not None and self.is_deserted() and cgroup.is_pristine(True) and self._tidy()

    def is_deserted(self) -> bool:
        """Whether nobody is in it, nobody has used its network, and nobody has left anything but files."""
        cgroup = self.jail_slot.cgroup
        if cgroup is None or self.is_killed or self.is_gone or not (self.is_vacated or cgroup.is_empty()):
            return False
        if self.is_unread:  # the next guest would be the one to read it
            return False
        for file, before, enough_bytes in self._records:
            if pread(file, enough_bytes, 0) != before:
                return False
        return self._queues < 0 or fstat(self._queues)[:_FACTS] == self._queues_before

    def _tidy(self) -> bool:
        """Whether its directories are as they were made, after the program and a few plain files have been taken away.

        Our own code has put the program there, and most leave nothing else. Nobody is in the jail any more.
        """
        if not self._dirs:
            return True
        work, temporary, shared = self._dirs
        try:  # noqa: SIM105  (in every run)
            unlink(_PROGRAM, dir_fd=work)
        except OSError:
            pass  # it is not there, or is no file any more; what there is will be seen
        before = self._dirs_before
        return (
            (fstat(work)[:_FACTS] == before[0] or _sweep(work, before[0]))
            and (fstat(temporary)[:_FACTS] == before[1] or _sweep(temporary, before[1]))
            and (fstat(shared)[:_FACTS] == before[2] or _sweep(shared, before[2]))
        )

    def has_used_dirs(self) -> bool:
        """Whether it has directories, and they are not as they were made."""
        return [fstat(directory)[:_FACTS] for directory in self._dirs] != self._dirs_before

    def take_dirs(self, fresh: Sequence[int]) -> None:
        """They have been mounted anew, and their descriptors are ours now; one that is not empty counts as used."""
        self._dirs, self._rules = [*fresh[: len(_DIRS)]], [*fresh[len(_DIRS) :]]
        for index, directory in enumerate(self._dirs):
            facts, before = fstat(directory)[:_FACTS], self._dirs_before[index]
            if (facts[0], *facts[3:]) == (before[0], *before[3:]):  # inode and device are others
                self._dirs_before[index] = facts

    def close(self) -> None:
        """It is gone, and so is who was still reading what its guest has said."""
        self.channel.close()
        self._their_channel.close()

    def let_go_of_dirs(self) -> None:
        """Before they are mounted anew, or are gone: what is in a directory is not freed while we hold it."""
        for descriptor in (*self._dirs, *self._rules):
            os.close(descriptor)
        self._dirs.clear()
        self._rules.clear()

    def kill(self) -> None:
        """End everyone inside at once; `gone` tells when it is done."""
        self.is_killed = True
        self.let_go_of_dirs()  # else it would be for us to free what is in them, when we have better things to do
        if not self.is_gone:
            cgroup = self.jail_slot.cgroup
            if cgroup is not None and cgroup.kill_file is not None:
                with contextlib.suppress(OSError):  # it went with its container
                    os.write(cgroup.kill_file, b"1")
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.jail_init, signal.SIGKILL)

    def was_taken_away(self) -> bool:
        """Whether its namespaces end or have ended though we did not end them: killed from outside, by an operator.

        No guest can do it: the kernel keeps signals of a pid namespace from its first process, and jail_init is in no
        cgroup of theirs. Everyone else is killed only once jail_init is marked as exiting, so whoever has seen a
        guest die of that finds the mark. We hear that jail_init is gone a moment later.
        """
        if self.is_killed:
            return False
        return self.is_gone or _is_exiting(self.jail_init)

    def lose(self) -> None:
        """The warden is gone, and with it everyone inside."""
        self._sleeper_ended(0, 0.0)

    def _sleeper_ended(self, status: int, cpu_seconds: float) -> None:
        """The kernel lets pid 1 of a namespace end only when everyone else in it is dead."""
        if self.is_gone:
            return
        self.is_gone = True
        if self.jail_slot.cgroup is not None and self.jail_slot.cgroup.oom_event is not None:
            asyncio.get_running_loop().remove_reader(self.jail_slot.cgroup.oom_event)
        os.close(self.jail_init)
        for file, _, _ in self._records:
            os.close(file)
        if self._queues >= 0:
            os.close(self._queues)
        self.let_go_of_dirs()
        if not self.gone.done():
            self.gone.set_result(None)
        self._on_gone(self)

    def _memory_event(self) -> None:
        cgroup = self.jail_slot.cgroup
        if cgroup is not None and cgroup.oom_event is not None:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(cgroup.oom_event)
        if self.on_memory_event is not None:
            self.on_memory_event()


def _sweep(directory: int, before: tuple[float, ...]) -> bool:
    """Unlink what a program has left, if it is a few files and no directory; whether all is now as it was.

    Each is one name in a directory that we hold, and no link is followed: nothing a program can do changes what this
    does. Whatever else there is, is left to the one way of emptying that need not look at it: to drop the mount.
    """
    facts = fstat(directory)[:_FACTS]
    if facts[:-1] != before[:-1] or facts[-1] - before[-1] > _FEW_FILES_BYTES:
        return False
    try:
        for name in os.listdir(directory):
            unlink(name, dir_fd=directory)
    except OSError:
        return False
    return fstat(directory)[:_FACTS] == before


def _read_counters(file: int) -> tuple[bytes, int]:
    """What they say, and how much has to be read to see a change: one byte more, since a longer text is another.

    Of `sockstat` only the first line is the jail's own; sockets in flight die long after their process.
    """
    text = os.pread(file, 16384, 0)
    if text.startswith(b"sockets:"):
        line = text[: text.index(b"\n") + 1]
        return line, len(line)
    return text, len(text) + 1


def _pid_of(pidfd: int) -> str:
    """As this process sees it; -1: it was reaped."""
    facts = Path(f"/proc/self/fdinfo/{pidfd}").read_text()
    return next(line.split()[1] for line in facts.splitlines() if line.startswith("Pid:"))


def _is_exiting(pidfd: int) -> bool:
    """Whether that process has begun to exit, by the kernel's own flags of it, or was reaped."""
    try:
        pid = _pid_of(pidfd)
        flags = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[_FLAGS])
        return bool(flags & _PF_EXITING) or _pid_of(pidfd) != pid
    except OSError:
        return True  # it is not there any more, or we cannot look: our trouble as well


def _open_traffic_counters(pidfd: int) -> list[int]:
    """The counters of the jail's network namespace: whether a program ever sent, tried to, or looked for a route."""
    pid = _pid_of(pidfd)
    opened: list[int] = []
    try:
        for name in ("snmp", "snmp6", "sockstat", "rt6_stats"):
            with contextlib.suppress(FileNotFoundError) if "6" in name else contextlib.nullcontext():  # no IPv6
                opened.append(os.open(f"/proc/{pid}/net/{name}", os.O_RDONLY | os.O_CLOEXEC))
    except BaseException:
        for file in opened:
            os.close(file)
        raise
    return opened
