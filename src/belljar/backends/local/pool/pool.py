"""The pool of one environment: its warden, its zygotes, its jails, and guests that wait for a program.

Guests are forked and jailed ahead of demand; who leases one only has to send the program.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from belljar import channel
from belljar.backends.local.pool import descriptors
from belljar.backends.local.pool.guests import Guest
from belljar.backends.local.pool.jail_pool import JAIL_SECONDS, JailPool
from belljar.backends.local.pool.jails import JAILS_MAX, Jail, JailSlot, JailSlots
from belljar.backends.local.pool.view import bound_places, guest_environ, hidden_places, import_pattern, imports_any
from belljar.backends.local.pool.warden_handle import (
    OutOfDescriptors,
    StartFailed,
    WardenHandle,
    ZygoteHandle,
    ZygoteListener,
)
from belljar.backends.local.pool.zygotes import BARE, PACKAGES, SESSION, Recipe, Zygotes
from belljar.backends.local.run.deadlines import SettleTimer
from belljar.contract.errors import JailSetupFailed, Overloaded, SandboxFault, ZygoteDied
from belljar.contract.execution import Execution, Limits
from belljar.environments import Environment
from belljar.inside.zygote import protocol
from belljar.jail import file_access, policy, syscalls
from belljar.jail.namespaces import can_count_apart
from belljar.settings import PoolSettings

_log = logging.getLogger("belljar.local")
_QUIET_SECONDS = 0.05  # after which the last few missing guests are forked
_SYSTEM_PYTHON = "/usr/bin/python3"  # what is warm in a pool that shows another system
#: A guest pays for every page of the interpreter it touches, because touching copies it. That is not the program's.
INTERPRETER_BYTES = {BARE: 4 << 20, PACKAGES: 16 << 20, SESSION: 32 << 20}
_CAP_FOWNER = 1 << 3  # to remove a file that is a guest's
FIRST_WORD_DESCRIPTORS = 4  # a session's directories and its pidfd
_START_FAILURES_MAX = 3  # ready guests that die unused, in a row, before we stop making them


class LocalPool(ZygoteListener):
    """One environment, warm. All methods run on the loop's thread."""

    def __init__(
        self,
        environment: Environment,
        jail_slots: JailSlots,
        pool: PoolSettings,
        default_limits: Limits,
        walls: Mapping[str, Any],
        shown: Mapping[str, str] | None = None,
        system: str = "",
        make_warden: Callable[[Callable[[], None]], WardenHandle] = WardenHandle,
    ) -> None:
        """`shown` adds places of the host to what guests see, read-only.

        `system` is a directory with another system: guests see that one, and its Python is the warm process.
        """
        self.environment = environment
        self._shown = dict(shown or {})
        self._system = system
        self.is_lost = False
        self._jail_slots = jail_slots
        self._pool_settings = pool
        self._walls = walls
        self._has_cgroup = walls["cgroup"]
        # Without a cgroup the kernel counts processes by uid and user namespace, and a plain user has but one uid.
        self._is_counted_apart = not (self._has_cgroup or walls["changes_uid"]) and can_count_apart()
        self._default_limits = default_limits
        self._default_allowance = self.allowance(default_limits)
        # What guests may not own, and we may tidy up, their jails can keep for the next one.
        keeps_dirs = walls["changes_uid"] and syscalls.permitted_capabilities() & _CAP_FOWNER
        disk_bytes = default_limits.disk_bytes if keeps_dirs else 0
        self.loop = asyncio.get_running_loop()
        self._warden = make_warden(self._warden_lost)
        self._jails = JailPool(
            jail_slots, self._warden, disk_bytes, walls["own_devices"], self._jail_added, self._jail_changed
        )
        self._zygotes = Zygotes(self._warden, self, pool, self._recipe, self._zygote_reaped)
        self._trimming: asyncio.TimerHandle | None = None
        self._filling: dict[str, asyncio.TimerHandle] = {}  # kinds of which a few guests are missing
        self._wanting: set[str] = set()  # kinds that wait for jails to fork their guests into
        self._burst = max(1, pool.ready_guests // 2)  # so many missing guests are forked in a row
        self._ready: dict[str, deque[Guest]] = {BARE: deque(), PACKAGES: deque(), SESSION: deque()}
        self._guests: dict[int, Guest] = {}
        self._next_guest = 0
        self._staying: set[int] = set()  # guests that are sessions, or wait as another command
        self.patience = SettleTimer()
        self._start_failures = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_closing = False
        tops = {name.split(".")[0] for name in environment.warm_imports}
        self._heavy_pattern = import_pattern(tops) if tops else None

    # ---- opening and closing

    async def open(self) -> None:
        """Build the pool and warm the bare zygote.

        Raises:
            JailSetupFailed: the warden or the zygote did not come up.
        """
        bound, hidden = self._places()
        orders = {
            "as_root": self._walls["as_root"],
            "uid_base": self._walls["uid_base"],
            "guest_uids": [
                self._jail_slots.first_uid + n for n in range(JAILS_MAX if self._walls["changes_uid"] else 1)
            ],
            "bound": bound,
            "hidden": hidden,
            "system": self._system,
            "landlock_version": self._walls["landlock_version"],
            "is_counted_apart": self._is_counted_apart,
            "has_own_devices": self._walls["own_devices"],
        }
        try:
            await self._warden.start(orders)
        except StartFailed as error:
            raise JailSetupFailed("pool", str(error)) from error
        await self._zygotes.get(BARE)

    def _places(self) -> tuple[dict[str, str], list[str]]:
        """What the guests' root shows, by its place there, and which directories in it are empty."""
        if self._system:
            return self._shown, []
        bound = {**bound_places(self.environment), **self._shown}
        return bound, hidden_places(bound, self.environment)

    def shows(self, places: Mapping[str, str]) -> bool:
        """Whether guests see all of these; where they are was decided when the pool was made."""
        return places.items() <= self._shown.items()

    def _python(self) -> str:
        """The interpreter as the guests' root has it."""
        return _SYSTEM_PYTHON if self._system else f"{policy.ENVIRONMENT_DIR}/bin/python"

    def _imports(self, kind: str) -> list[str]:
        """What a zygote of this kind imports ahead."""
        return [] if kind == BARE else list(self.environment.warm_imports)

    @property
    def certificates(self) -> str:
        """Where programs find the certificates of authorities that sign for web sites; empty: not known."""
        return next((path for path in policy.CERTIFICATES if Path(self._system + path).is_file()), "")

    def _environ(self) -> dict[str, str]:
        """What every program finds in its environment."""
        return guest_environ()

    async def close(self) -> None:
        """End every process of this pool and wait until it is gone."""
        self._is_closing = True
        if self._trimming is not None:
            self._trimming.cancel()
        self.patience.close()
        for waiting in self._filling.values():
            waiting.cancel()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._zygotes.stop_starting()
        await self._jails.close()
        self._zygotes.close()
        await self._warden.close()
        self._lose_everything()

    # ---- zygotes

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs in it: every guest there is waits for a program."""
        return len(self._guests) <= sum(map(len, self._ready.values()))  # sessions count as well

    def choose_kind(self, execution: Execution) -> str:
        """Which zygote this program should come from, by what it and its own modules import."""
        pattern = self._heavy_pattern
        if pattern is None or ("import" not in execution.code and not execution.files):
            return BARE
        return PACKAGES if imports_any(pattern, execution) else BARE

    def _recipe(self, kind: str) -> Recipe:
        return self._python(), {
            "imports": self._imports(kind),
            "stays": kind == SESSION,
            "environ": self._environ(),
            "landlock_version": self._walls["landlock_version"],
            "changes_uid": self._walls["changes_uid"],
            "is_counted_apart": self._is_counted_apart,
            "can_watch": self._walls["own_devices"],
            "counts_cpu": not self._has_cgroup,
            "makes_ready": kind != SESSION and self._pool_settings.ready_guests > 0,
        }

    def zygote_lost(self, zygote: ZygoteHandle) -> None:
        """Its guests live on under the warden; those it had not told us about are lost."""
        if self._zygotes.lose(zygote):
            _log.error("the %s zygote of %s died; replacing it", zygote.kind, self.environment.name)
        self._find_orphans(zygote)
        for guest in list(self._guests.values()):
            if guest.pid is None and guest.zygote is zygote:
                guest.jail.kill()
                self._end(guest, None, 0.0)

    def _find_orphans(self, zygote: ZygoteHandle) -> dict[int, Guest]:
        """Its guests by their pids: from now on the warden reports what becomes of them."""
        orphans = {}
        for guest in list(self._guests.values()):
            if guest.zygote is not zygote:
                continue
            if guest.pid is None:
                guest.pid = zygote.pid_of(guest.number, guest.jail.number)
                if guest.pid is None:
                    continue
                self._warden.watch(guest.pid, partial(self.guest_ended, guest.number))
            if not guest.has_ended:  # the warden may have known already
                orphans[guest.pid] = guest
        return orphans

    def _zygote_reaped(self, zygote: ZygoteHandle) -> None:
        """Its guests are the warden's children now, but for those it had reaped and not yet told us about."""
        orphans = self._find_orphans(zygote)
        if orphans and not self._is_closing and not self.is_lost:
            self._in_background(self._end_unreported(orphans))

    async def _end_unreported(self, orphans: Mapping[int, Guest]) -> None:
        for pid in await self._warden.find_missing(list(orphans)):
            guest = orphans[pid]
            if guest.number in self._guests:
                guest.jail.kill()
                self._end(guest, None, 0.0)

    def unstick(self, guest: Guest) -> None:
        """Nothing is heard of `guest`: end its zygote if that may be why, else the whole pool."""
        if not guest.has_ended and not guest.zygote.is_lost:
            _log.error("the %s zygote of %s does not answer; ending it", guest.kind, self.environment.name)
            guest.zygote.close()
            self.zygote_lost(guest.zygote)
        else:
            _log.error("the warden of %s does not answer; ending it", self.environment.name)
            self._warden.kill()

    def drop_taken_away(self) -> None:
        """Lease no guest, and fork into no jail, that was ended from outside: its end is reported a moment later."""
        for ready in self._ready.values():
            for guest in [each for each in ready if each.jail.was_taken_away()]:
                ready.remove(guest)
        self._jails.idle[:] = [jail for jail in self._jails.idle if not jail.was_taken_away()]

    def let_go_of_unused(self) -> None:
        """Drop heavy zygotes and their ready guests when nobody has asked for one in a while; replace old ones."""
        self._zygotes.rotate_old()
        for kind in self._zygotes.let_go_of_unused():
            for guest in list(self._ready[kind]):
                guest.jail.kill()
            self._ready[kind].clear()

    # ---- guests

    def allowance(self, limits: Limits) -> tuple[int, ...]:
        """What is fixed at the fork: disk, and where no cgroup counts them CPU, processes and address space."""
        if self._has_cgroup:
            return limits.disk_bytes, 0, 0, 0
        processes = limits.processes
        if not self._walls["changes_uid"] and not self._is_counted_apart:
            processes += 2 * self._pool_settings.max_running * limits.processes  # all guests count as one
        return limits.disk_bytes, max(1, math.ceil(limits.cpu_seconds)), processes, limits.memory_bytes

    def is_ready_for(self, limits: Limits) -> bool:
        """Whether a guest that was made ahead can be limited so; the rest is the cgroup's, and can be set late."""
        return self._has_cgroup and self.allowance(limits) == self._default_allowance

    @property
    def landlock_version(self) -> int:
        """What the guests' landlock can do; 0: the operator gave it up."""
        return int(self._walls["landlock_version"])

    @property
    def busy_guests(self) -> int:
        """How many have a program."""
        return len(self._guests) - sum(map(len, self._ready.values())) - len(self._staying)

    def lease_ready(self, kind: str, limits: Limits) -> Guest | None:
        """A guest of this kind behind these limits that waits for a program, if there is one."""
        self._zygotes.note_use(kind)
        ready = self._ready[kind]
        if not ready or not (limits is self._default_limits or self.allowance(limits) == self._default_allowance):
            return None
        guest = ready.popleft()
        guest.ended = None  # whoever leases it releases it, be it before a program was sent
        return guest

    async def lease(self, kind: str, limits: Limits) -> Guest:
        """A guest of this kind behind these limits: a ready one when there is one, else forked now.

        Raises:
            JailSetupFailed: none can be made.
            ZygoteDied: this pool has ended meanwhile; another may have one.
        """
        guest = self.lease_ready(kind, limits)
        if guest is not None:
            return guest
        try:
            return await self._make_guest(kind, limits)
        except JailSetupFailed as error:
            if self.is_lost:
                raise ZygoteDied("the warm process died before it had a guest for this program") from error
            raise

    async def _make_guest(self, kind: str, limits: Limits) -> Guest:
        allowance = self.allowance(limits)
        while True:
            if await self._jails.wait_for_renewal():
                guest = self.lease_ready(kind, limits)
                if guest is not None:
                    return guest
            jail = self._jails.idle.pop() if self._jails.idle else await self._jails.make()
            try:
                zygote = await self._zygotes.get(kind)  # asked last: it may have died while a jail was made
            except BaseException:
                self._jails.put_back(jail)
                raise
            if not jail.is_gone:
                return self._fork(zygote, jail, allowance)

    def _fork(self, zygote: ZygoteHandle, jail: Jail, allowance: tuple[int, ...]) -> Guest:
        self._next_guest += 1
        try:
            guest = Guest(self._next_guest, jail, zygote, zygote.kind == SESSION)
        except OSError as error:
            self._jails.put_back(jail)
            raise descriptors.refusal() from error
        jail.is_leased, jail.is_vacated = True, False
        self._guests[guest.number] = guest
        jail_slot = jail.jail_slot
        if allowance[0] == self._jails.disk_bytes and jail.has_dirs and zygote.kind != SESSION:
            allowance = 0, *allowance[1:]  # not a session's: those of its branches would replace them
        order = protocol.FORK.pack(guest.number, jail_slot.number, jail_slot.uid, *allowance)
        try:
            if jail_slot.number not in zygote.jails:
                zygote.add_jail(jail_slot.number, jail.descriptors(zygote.kind == SESSION), jail.has_rules)
            zygote.fork(order, guest.their_ends)
        except (channel.ChannelClosed, OSError) as error:
            del self._guests[guest.number]
            guest.close_their_ends()
            self.release(guest)
            if descriptors.is_one(error):
                raise descriptors.refusal() from error
            raise ZygoteDied("the warm process is gone; the next request starts a new one") from error
        guest.close_their_ends()
        self._zygotes.note_fork(zygote)
        return guest

    def take_jail_slot(self) -> JailSlot | None:
        """A cgroup for a branch, which lives in another's jail; None when all are in use."""
        return self._jail_slots.take()

    def give_back(self, jail_slot: JailSlot) -> None:
        """The branch is gone."""
        self._jail_slots.give_back(jail_slot)

    def owner_of(self, jail_slot: JailSlot) -> int | None:
        """The host's uid of who lives in a berth; None where that is our own."""
        return int(self._walls["uid_base"]) + jail_slot.uid if self._walls["changes_uid"] else None

    def check_dirs(self, directories: Sequence[int]) -> None:
        """See that these, which a guest has handed over, are directories that were mounted for a program.

        Raises:
            SandboxFault: they are not; nothing may be read or written beneath them.
        """
        try:
            file_access.check_writable_dirs(
                directories, int(self._walls["uid_base"]) if self._walls["as_root"] else os.geteuid()
            )
        except file_access.NotOurs as error:
            raise SandboxFault(f"a guest has handed over a directory that is not its own: {error}") from error

    async def graft(self, order: Mapping[str, Any], lent: Sequence[int]) -> tuple[int, int]:
        """Have the place of a branch made."""
        return await self._warden.graft(order, lent)

    async def deposit(self, order: Mapping[str, Any], descriptors: Sequence[int]) -> tuple[int, int]:
        """Have a file written into a session.

        Raises:
            JailSetupFailed: the warden does not answer.
        """
        try:
            async with asyncio.timeout(JAIL_SECONDS):
                return await self._warden.deposit(order, descriptors)
        except TimeoutError as error:
            self._warden.kill()
            raise JailSetupFailed("file", "the warden does not answer") from error

    async def listen(self, place: int, port: int) -> tuple[int, int]:
        """A listener on a guest's own loopback: its port, and it, which the caller owns.

        Raises:
            JailSetupFailed: it cannot be had.
        """
        try:
            async with asyncio.timeout(JAIL_SECONDS):
                return await self._warden.listen(place, port)
        except TimeoutError as error:
            self._warden.kill()
            raise JailSetupFailed("network", "the warden does not answer") from error
        except OutOfDescriptors as error:
            raise descriptors.refusal() from error
        except StartFailed as error:
            raise JailSetupFailed("network", str(error)) from error

    def keep(self, guest: Guest) -> None:
        """This guest stays, as a session does, and its staying says nothing about how much is going on."""
        self._staying.add(guest.number)

    def release(self, guest: Guest) -> None:
        """The run is over, and everything of it has been read. Use the jail again if it is as new."""
        if self._staying:
            self._staying.discard(guest.number)
        guest.close()
        self._jails.release(guest.jail, guest.has_ended)
        if self._trimming is None:
            self._trim_later()

    def _trim_later(self) -> None:
        if not self._is_closing:
            self._trimming = self.loop.call_later(self._pool_settings.jail_seconds, self._trim_idle_jails)

    def _trim_idle_jails(self) -> None:
        """Once nothing runs, give up the jails of the last burst: what is kept must not depend on past load."""
        self._trimming = None
        if self.busy_guests > 0:
            self._trim_later()
            return
        self._jails.give_up_idle()

    def refill(self, kind: str) -> None:
        """Have guests forked ahead of demand. Called after an answer, never before.

        Several in a row cost less each than one after every answer, and most programs then run without a fork beside
        them. So a few may be missing, until nobody has asked for a moment.
        """
        missing = self._pool_settings.ready_guests - len(self._ready[kind])
        if missing >= self._burst:
            self._fill(kind)
        elif missing > 0 and kind not in self._filling:
            self._filling[kind] = self.loop.call_later(_QUIET_SECONDS, self._fill, kind)

    def _fill(self, kind: str) -> None:
        """Fork whoever is missing."""
        waiting = self._filling.pop(kind, None)
        if waiting is not None:
            waiting.cancel()
        self._wanting.discard(kind)
        ready = self._ready[kind]
        missing = self._pool_settings.ready_guests - len(ready)
        if missing <= 0 or self._start_failures >= _START_FAILURES_MAX or self._is_closing or self.is_lost:
            return
        zygote = self._zygotes.find(kind)
        if zygote is None:
            return
        idle = self._jails.idle
        while missing and idle:
            jail = idle.pop()
            if jail.is_gone:
                continue
            try:
                guest = self._fork(zygote, jail, self._default_allowance)
            except ZygoteDied:
                continue
            except Overloaded:
                return
            guest.ended = self._unused_guest_ended(guest)
            ready.append(guest)
            missing -= 1
        if missing:
            self._wanting.add(kind)
            self._jails.want(missing)

    def _unused_guest_ended(self, guest: Guest) -> Callable[[int | None, float], None]:
        def ended(status: int | None, cpu_seconds: float) -> None:
            """A ready guest that ends without a program has failed to enter its jail."""
            if guest in self._ready[guest.kind]:
                self._ready[guest.kind].remove(guest)
                if not self._is_closing and not self.is_lost and not guest.jail.was_taken_away():
                    self._start_failures += 1
                    _log.error("a ready guest ended unused (status %s): %s", status, read_failure(guest.channel))
            self.release(guest)

        return ended

    def succeeded(self) -> None:
        """A program has started: guests can be made."""
        self._start_failures = 0

    # ---- what the jails, the zygotes and the warden say

    def _jail_added(self) -> None:
        if self._trimming is None:
            self._trim_later()
        for kind in tuple(self._wanting):
            self._fill(kind)

    def _jail_changed(self, jail: Jail) -> None:
        for zygote in self._zygotes:
            zygote.forget_jail(jail.number)

    def guest_unborn(self, number: int, reason: str) -> None:
        """The fork failed: the jail is of no use."""
        guest = self._guests.get(number)
        if guest is not None:
            if not guest.jail.is_killed:  # else its run was given up before it began
                _log.error("a guest could not be forked: %s", reason)
            guest.jail.kill()
            self._end(guest, None, 0.0)

    def guest_ended(self, number: int, status: int, cpu_seconds: float) -> None:
        """Its own process is gone."""
        guest = self._guests.get(number)
        if guest is not None:
            if guest.pid is not None:
                self._warden.unwatch(guest.pid)
            self._end(guest, status, cpu_seconds)

    def _end(self, guest: Guest, status: int | None, cpu_seconds: float) -> None:
        del self._guests[guest.number]
        guest.has_ended = True
        ended, guest.ended = guest.ended, None
        if ended is not None:
            ended(status, cpu_seconds)

    def _warden_lost(self) -> None:
        if not self._is_closing:
            _log.error("the warden of %s died; its pool is rebuilt on the next request", self.environment.name)
        self._lose_everything()

    def _lose_everything(self) -> None:
        self.is_lost = True
        self._jails.lose()
        for guest in list(self._guests.values()):
            self._end(guest, None, 0.0)
        self._zygotes.close()

    def _in_background(self, work: Any) -> asyncio.Task[Any]:
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # whoever awaits it raises
        return task

    def facts(self) -> dict[str, int]:
        """Numbers for monitoring."""
        return {
            "ready_guests": sum(map(len, self._ready.values())),
            "guests": len(self._guests),
            "jails": len(self._jails),
            "zygotes": len(self._zygotes),
            "zygotes_replaced": self._zygotes.replaced,
        }


def read_failure(peer: channel.Peer) -> str:
    """What a guest that could not start has said."""
    try:
        message, _, sent = channel.receive(peer, FIRST_WORD_DESCRIPTORS, channel.NOW)
    except (BlockingIOError, channel.ChannelClosed, OSError):
        return "it said nothing"
    for descriptor in sent:
        os.close(descriptor)
    return f"{message.get('failed')}: {message.get('reason')}" if "failed" in message else "it had started"
