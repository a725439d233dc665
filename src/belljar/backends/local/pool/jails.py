"""Jails: what a guest lives in, as far as it is expensive to make; made ahead, and reused only if provably clean.

A jail is a pid namespace, a network namespace with a loopback of its own, an ipc namespace and a mount namespace with
the three directories that a program may write to, all held by a process that sleeps; a cgroup; a socket over which its
guests get their programs; and a uid that no other jail has. A guest joins it. Afterwards it is reused only if it is as
it was: no process left in it, nothing unread in its socket, nothing ever sent over its loopback, no queue, semaphore or
shared memory, no file. A few plain files are removed; for more, the directories are mounted again. For any other
difference, and in doubt, the jail is destroyed.

A guest can change neither the owner of its jail's directories nor their mode, labels or flags: they belong to the root
of its pool. Everything that it has left is therefore in them, and they count what is in them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Callable, Sequence
from os import fstat, pread, unlink
from pathlib import Path

from belljar import channel
from belljar.aio import cancel_all
from belljar.backends.local.pool import descriptors
from belljar.backends.local.pool.jail_slots import JAILS_MAX, JailSlot, JailSlots
from belljar.backends.local.pool.warden_handle import OutOfDescriptors, StartFailed, WardenHandle, discard
from belljar.contract.errors import JailSetupFailed, Overloaded, ZygoteDied
from belljar.jail import policy

_log = logging.getLogger("belljar.local")
_RENEWAL_SECONDS = 30.0
_FACTS = 7  # the first ones of a directory: mode, inode, device, links, owner, group, and a size that counts entries
_DIRS, _PROGRAM = policy.WRITABLE_DIRS, policy.PROGRAM_NAME
_IPC_RECORDS = 4  # as `mounts.open_ipc_records` gives them
_FLAGS, _PF_EXITING = 6, 0x4  # among what follows the name in /proc/PID/stat
_FEW_FILES_BYTES = 16 * 20  # a directory grows by so much for each entry


class Jail:
    """A slot with live namespaces. Owns the pidfd of its first process and, through it, every process inside."""

    def __init__(
        self, jail_slot: JailSlot, warden: WardenHandle, pid: int, made: Sequence[int], on_gone: Callable[[Jail], None]
    ) -> None:
        """`made` are the descriptors that the warden has sent; they are the jail's unless this raises."""
        self.jail_slot = jail_slot
        self.number = jail_slot.number
        self.jail_init = made[0]
        self.is_gone = False
        self.is_killed = False  # though the warden may not have reported its end yet
        self.is_leased = False  # a guest is in it, or its run is still being read
        self.is_unread = False  # a program was sent to its guest, which has not confirmed it
        self.is_vacated = False  # its guest has ended and no other process was in it: only we can send one
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.on_memory_event: Callable[[], None] | None = None
        self._on_gone = on_gone
        # One for all guests, one after the other: no program ever holds it, and the kernel searches for lost sockets
        # whenever one that was passed around is closed.
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
        warden.watch(pid, self._jail_init_ended)

    def descriptors(self, stays: bool) -> list[int]:
        """What a zygote needs to put a guest or session here; the third is a ruleset, if it `has_rules`."""
        cgroup = self.jail_slot.cgroup
        joined = (*cgroup.join_files, *(cgroup.shares_join if stays else ())) if cgroup else ()
        return [self.jail_init, self._their_channel.fileno(), *self._rules, *joined]

    @property
    def has_rules(self) -> bool:
        """Whether the landlock ruleset of its directories is made already."""
        return bool(self._rules)

    @property
    def has_dirs(self) -> bool:
        """Whether the jail has directories and an ipc namespace for its guests."""
        return bool(self._dirs)

    def is_pristine(self) -> bool:
        """Whether the next guest would find nothing of the last one; False without a cgroup, which alone can show it.

        Memory is checked before files are: if they take little of it, a few are removed here and now.
        """
        cgroup = self.jail_slot.cgroup
        return cgroup is not None and self.is_deserted() and cgroup.is_pristine(True) and self._tidy()

    def is_deserted(self) -> bool:
        """Whether no process is in it, its network was not used, and nothing but files was left."""
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
        """Remove the program and a few plain files; return whether the directories are as they were made.

        Our own code has put the program there, and most leave nothing else. No process is in the jail any more.
        """
        if not self._dirs:
            return True
        work, temporary, shared = self._dirs
        try:  # noqa: SIM105  (in every run)
            unlink(_PROGRAM, dir_fd=work)
        except OSError:
            pass  # it does not exist, or is no file any more: the checks below see that
        before = self._dirs_before
        return (
            (fstat(work)[:_FACTS] == before[0] or _sweep(work, before[0]))
            and (fstat(temporary)[:_FACTS] == before[1] or _sweep(temporary, before[1]))
            and (fstat(shared)[:_FACTS] == before[2] or _sweep(shared, before[2]))
        )

    def has_used_dirs(self) -> bool:
        """Whether its directories are not as they were made."""
        return [fstat(directory)[:_FACTS] for directory in self._dirs] != self._dirs_before

    def take_dirs(self, fresh: Sequence[int]) -> None:
        """Take the descriptors of directories that were mounted again; one that is not empty counts as used."""
        self._dirs, self._rules = [*fresh[: len(_DIRS)]], [*fresh[len(_DIRS) :]]
        for index, directory in enumerate(self._dirs):
            facts, before = fstat(directory)[:_FACTS], self._dirs_before[index]
            if (facts[0], *facts[3:]) == (before[0], *before[3:]):  # inode and device differ
                self._dirs_before[index] = facts

    def close(self) -> None:
        """Close the socket: the jail is gone, and all that its guest has sent was read."""
        self.channel.close()
        self._their_channel.close()

    def let_go_of_dirs(self) -> None:
        """Close its directories before they are mounted again or end: open ones would not be freed."""
        for descriptor in (*self._dirs, *self._rules):
            os.close(descriptor)
        self._dirs.clear()
        self._rules.clear()

    def kill(self) -> None:
        """Kill every process inside at once; `gone` is done once they are dead."""
        self.is_killed = True
        self.let_go_of_dirs()  # else this process would free what is in them, and that takes time
        if not self.is_gone:
            cgroup = self.jail_slot.cgroup
            if cgroup is not None and cgroup.kill_file is not None:
                with contextlib.suppress(OSError):  # it ended with its container
                    os.write(cgroup.kill_file, b"1")
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.jail_init, signal.SIGKILL)

    def was_taken_away(self) -> bool:
        """Whether its namespaces end or have ended though we did not end them: killed from outside, by an operator.

        No guest can do it: the kernel keeps signals of a pid namespace from its first process, jail_init, and that is
        in no cgroup of theirs. The others are killed only once jail_init is marked as exiting, so the mark is there
        when a guest was seen to die of it. The warden reports the end of jail_init a moment later.
        """
        if self.is_killed:
            return False
        return self.is_gone or _is_exiting(self.jail_init)

    def lose(self) -> None:
        """The warden is gone, and every process inside with it."""
        self._jail_init_ended(0, 0.0)

    def _jail_init_ended(self, status: int, cpu_seconds: float) -> None:
        """The kernel lets pid 1 of a namespace end only when every other process in it is dead."""
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


class JailPool:
    """Every jail of a pool: made when needed, reused when clean. All methods run on the loop's thread."""

    def __init__(
        self,
        jail_slots: JailSlots,
        warden: WardenHandle,
        disk_bytes: int,
        has_own_devices: bool,
        on_added: Callable[[], None],
        on_changed: Callable[[Jail], None],
    ) -> None:
        """`disk_bytes` is what the directories of a jail hold; 0: jails have none, each guest makes its own.

        `has_own_devices`: device nodes are made for each jail, else all share those of the host.

        `on_added` is called when a jail has become idle, but not when one was put back; `on_changed` when a jail has
        other descriptors now, or has ended.
        """
        self.disk_bytes = disk_bytes
        self._has_own_devices = has_own_devices
        self.idle: list[Jail] = []  # those without a guest
        self._jail_slots = jail_slots
        self._warden = warden
        self._on_added = on_added
        self._on_changed = on_changed
        self._loop = asyncio.get_running_loop()
        self._jails: dict[int, Jail] = {}
        self._being_made = 0
        self._renewals: dict[Jail, asyncio.Future[list[int]]] = {}  # jails that get fresh directories, then are idle
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._jails)

    async def close(self) -> None:
        """Make no more jails. Those that exist end with their warden."""
        self._is_closed = True
        await cancel_all(self._tasks)

    def lose(self) -> None:
        """The warden is gone, and every jail with it."""
        self._is_closed = True
        for jail in list(self._jails.values()):
            jail.lose()

    async def make(self) -> Jail:
        """Make a jail, which the caller puts back.

        Raises:
            Overloaded: all slots are in use, or no descriptors are left.
            JailSetupFailed: it could not be made.
            ZygoteDied: it ended at once.
        """
        descriptors.check_room(descriptors.OF_A_CGROUP + descriptors.OF_A_JAIL * (self._being_made + 1))
        jail_slot = self._jail_slots.take()
        if jail_slot is None:
            raise Overloaded(f"all {JAILS_MAX} jails are in use; try again later")
        self._being_made += 1
        try:
            pid, made = await self._warden.make_jail(self.disk_bytes, self._has_own_devices)
        except OutOfDescriptors as error:
            self._jail_slots.give_back(jail_slot)
            raise descriptors.refusal() from error
        except (StartFailed, OSError) as error:
            self._jail_slots.give_back(jail_slot)
            if descriptors.is_one(error):
                raise descriptors.refusal() from error
            raise JailSetupFailed("jail", str(error)) from error
        except BaseException:
            self._jail_slots.give_back(jail_slot)
            raise
        finally:
            self._being_made -= 1
        try:
            descriptors.keep_reserve(max(made))
            jail = Jail(jail_slot, self._warden, pid, made, self._jail_gone)
        except (OSError, StopIteration) as error:  # it has died meanwhile, or no descriptors are left for it
            discard(made, is_process=True)
            self._jail_slots.give_back(jail_slot)
            if descriptors.is_one(error):
                raise descriptors.refusal() from error
            raise ZygoteDied("a jail ended while it was made") from error
        self._jails[jail.number] = jail
        return jail

    def want(self, count: int) -> None:
        """Have `count` idle jails made, less those that will be idle soon."""
        for _ in range(count - self._being_made - len(self._renewals)):
            task = self._loop.create_task(self._make_idle())
            self._tasks.add(task)
            task.add_done_callback(self._made_idle)

    async def _make_idle(self) -> None:
        with contextlib.suppress(JailSetupFailed, Overloaded):
            self._add(await self.make())

    def _made_idle(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved: what needs a jail makes another

    def _add(self, jail: Jail) -> None:
        self.idle.append(jail)
        self._on_added()

    def put_back(self, jail: Jail) -> None:
        """Take back a jail that no guest has been in since it was clean."""
        self.idle.append(jail)

    def release(self, jail: Jail, is_empty: bool) -> None:
        """Take back a jail whose run is over and entirely read. Keep it if it is clean, or can be cleaned."""
        jail.is_leased = False
        if jail.is_gone:
            self._forget(jail)
        elif not is_empty:
            jail.kill()
        elif jail.is_pristine():
            self.idle.append(jail)
        else:
            self._renew(jail)

    def _renew(self, jail: Jail) -> None:
        """Have the directories of a jail mounted again if its guest has left nothing but files; else destroy it."""
        if not jail.is_deserted() or not jail.has_used_dirs() or self._is_closed:
            jail.kill()
            return
        jail.let_go_of_dirs()
        renewal = self._warden.renew(jail.jail_init, self.disk_bytes)
        self._renewals[jail] = renewal
        renewal.add_done_callback(lambda _: self._renewed(jail, renewal))

    def _renewed(self, jail: Jail, renewal: asyncio.Future[list[int]]) -> None:
        """A callback, not a task: it cannot be cancelled, so the descriptors become the jail's or are closed."""
        del self._renewals[jail]
        fresh = [] if renewal.exception() else renewal.result()
        if jail.is_gone or jail.is_killed or not fresh:
            for directory in fresh:
                os.close(directory)
            if not jail.is_gone and not jail.is_killed:
                _log.warning("the directories of a jail were not mounted again: %s", renewal.exception())
            jail.kill()
            return
        jail.take_dirs(fresh)
        self._on_changed(jail)
        if jail.is_pristine():
            self._add(jail)
        else:
            jail.kill()

    async def wait_for_renewal(self) -> bool:
        """Wait for a jail that gets new directories, if no jail is idle; return whether there was one to wait for."""
        if self.idle or not self._renewals:
            return False
        await asyncio.wait(self._renewals.values(), timeout=_RENEWAL_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        return True

    def give_up_idle(self) -> None:
        """Destroy every idle jail."""
        idle, self.idle = self.idle, []
        for jail in idle:
            jail.kill()

    def _jail_gone(self, jail: Jail) -> None:
        self._jails.pop(jail.number, None)
        if jail in self.idle:
            self.idle.remove(jail)
        self._on_changed(jail)
        if not jail.is_leased:  # else its run still reads the cgroup
            self._forget(jail)

    def _forget(self, jail: Jail) -> None:
        jail.close()
        self._jail_slots.give_back(jail.jail_slot)


def _sweep(directory: int, before: tuple[float, ...]) -> bool:
    """Unlink what a program has left, if it is a few files and no directory; return whether all is now as it was.

    Each is one name in a directory that we hold, and no link is followed: nothing that a program can do changes what
    this does. Anything else is left to the one way of emptying that need not look at it: to drop the mount.
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
    """Their content, and how much has to be read to see a change: one byte more, since a longer text differs.

    Of `sockstat` only the first line is the jail's own; sockets in flight die long after their process.
    """
    text = os.pread(file, 16384, 0)
    if text.startswith(b"sockets:"):
        line = text[: text.index(b"\n") + 1]
        return line, len(line)
    return text, len(text) + 1


def _pid_of(pidfd: int) -> str:
    """The pid as this process sees it; -1: it was reaped."""
    facts = Path(f"/proc/self/fdinfo/{pidfd}").read_text()
    return next(line.split()[1] for line in facts.splitlines() if line.startswith("Pid:"))


def _is_exiting(pidfd: int) -> bool:
    """Whether that process has begun to exit, by the kernel's own flags of it, or was reaped."""
    try:
        pid = _pid_of(pidfd)
        flags = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[_FLAGS])
        return bool(flags & _PF_EXITING) or _pid_of(pidfd) != pid
    except OSError:
        return True  # it is gone, or we cannot look: not the program's fault either


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
