"""Guests forked and jailed ahead of demand: a program that leases one only has to be sent to it."""

from __future__ import annotations

import asyncio
import functools
import logging
import math
import os
from collections import deque
from collections.abc import Callable

from belljar import channel
from belljar.backends.local.pool import descriptors
from belljar.backends.local.pool.guests import Guest, LiveGuests
from belljar.backends.local.pool.jail_slots import JailSlot, JailSlots
from belljar.backends.local.pool.jails import Jail, JailPool
from belljar.backends.local.pool.view import Walls
from belljar.backends.local.pool.warden_handle import WardenHandle
from belljar.backends.local.pool.zygotes import BARE, PACKAGES, SESSION, ZygoteHandle
from belljar.backends.local.run import artifacts
from belljar.backends.local.run.output import SettleTimer
from belljar.contract.errors import JailSetupFailed, Overloaded, ZygoteDied
from belljar.contract.execution import Limits
from belljar.inside.zygote import protocol
from belljar.jail import syscalls
from belljar.settings import PoolSettings

_log = logging.getLogger("belljar.local")
_QUIET_SECONDS = 0.05  # after which the last few missing guests are forked
#: A guest pays for every page of the interpreter it touches, because touching copies it. That is not the program's.
INTERPRETER_BYTES = {BARE: 4 << 20, PACKAGES: 16 << 20, SESSION: 32 << 20}
_CAP_FOWNER = 1 << 3  # to remove a file that is a guest's
FIRST_WORD_DESCRIPTORS = 4  # a session's directories and its pidfd
_START_FAILURES_MAX = 3  # ready guests that die unused, in a row, before no more are made


class ReadyGuests:
    """Leases guests of one pool, and forks those that are missing. All methods run on the loop's thread."""

    def __init__(
        self,
        live: LiveGuests,
        warden: WardenHandle,
        jail_slots: JailSlots,
        settings: PoolSettings,
        default_limits: Limits,
        walls: Walls,
        is_counted_apart: bool,
    ) -> None:
        """`is_counted_apart`: the kernel counts the processes of each guest by itself, without a cgroup."""
        self.loop = asyncio.get_running_loop()
        self.is_lost = False
        self.warden = warden
        self.jail_slots = jail_slots
        self.walls = walls
        self.patience = SettleTimer()
        self.unstick = live.unstick
        self._live = live
        self._guests = live.by_number
        self._zygotes = live.zygotes
        self._used_at = live.zygotes.used_at
        self._settings = settings
        self._has_cgroup = walls.cgroup
        self._is_counted_apart = is_counted_apart
        self._default_limits = default_limits
        self._default_allowance = self._allowance(default_limits)
        # Directories that guests cannot own, and this process can tidy up, are kept in their jail for the next guest.
        keeps_dirs = walls.as_root and syscalls.permitted_capabilities() & _CAP_FOWNER
        disk_bytes = default_limits.disk_bytes if keeps_dirs else 0
        self._jails = JailPool(jail_slots, warden, disk_bytes, walls.own_devices, self._jail_added, self._jail_changed)
        self._trimming: asyncio.TimerHandle | None = None
        self._filling: dict[str, asyncio.TimerHandle] = {}  # kinds of which a few guests are missing
        self._wanting: set[str] = set()  # kinds that wait for jails to fork their guests into
        self._burst = max(1, settings.ready_guests // 2)  # so many missing guests are forked in a row
        self._ready: dict[str, deque[Guest]] = {BARE: deque(), PACKAGES: deque(), SESSION: deque()}
        self._next_guest = 0
        self._staying: set[int] = set()  # guests that are sessions, or wait as another command
        self._start_failures = 0
        self._is_closing = False

    async def warm(self, kind: str) -> None:
        """Start the zygote of this kind.

        Raises:
            JailSetupFailed: it does not start.
        """
        await self._zygotes.get(kind)

    async def close(self) -> None:
        """Make no more guests. Those there are end with the warden."""
        self._is_closing = True
        if self._trimming is not None:
            self._trimming.cancel()
        self.patience.close()
        for waiting in self._filling.values():
            waiting.cancel()
        await self._live.stop()
        await self._jails.close()
        self._zygotes.close()

    def lose(self) -> None:
        """End every guest and jail: the warden is gone, and all of them with it."""
        self.is_lost = True
        self._jails.lose()
        self._live.lose()

    # ---- how many there are

    @property
    def is_idle(self) -> bool:
        """Whether no program and no session runs: every guest waits for a program."""
        return len(self._guests) <= sum(map(len, self._ready.values()))

    @property
    def busy_guests(self) -> int:
        """How many have a program."""
        return len(self._guests) - sum(map(len, self._ready.values())) - len(self._staying)

    def facts(self) -> dict[str, int]:
        """Numbers for monitoring."""
        return {
            "ready_guests": sum(map(len, self._ready.values())),
            "guests": len(self._guests),
            "jails": len(self._jails),
            "zygotes": len(self._zygotes),
            "zygotes_replaced": self._zygotes.replaced,
        }

    # ---- leases

    def _allowance(self, limits: Limits) -> tuple[int, ...]:
        """What is fixed at the fork: disk, and where no cgroup counts them CPU, processes and address space."""
        if self._has_cgroup:
            return limits.disk_bytes, 0, 0, 0
        processes = limits.processes
        if not self.walls.as_root and not self._is_counted_apart:
            processes += 2 * self._settings.max_running * limits.processes  # all guests count as one
        return limits.disk_bytes, max(1, math.ceil(limits.cpu_seconds)), processes, limits.memory_bytes

    def is_ready_for(self, limits: Limits) -> bool:
        """Whether a guest that was forked ahead can have these limits; those of the cgroup can be set late."""
        return self._has_cgroup and self._allowance(limits) == self._default_allowance

    def lease_ready(self, kind: str, limits: Limits) -> Guest | None:
        """A guest of this kind behind these limits that waits for a program, if there is one."""
        self._used_at[kind] = self.loop.time()
        ready = self._ready[kind]
        if not ready or not (limits is self._default_limits or self._allowance(limits) == self._default_allowance):
            return None
        guest = ready.popleft()
        guest.ended = None  # the caller releases it, even if no program was sent
        return guest

    async def lease(self, kind: str, limits: Limits) -> Guest:
        """A guest of this kind behind these limits: a ready one if there is one, else forked now.

        Raises:
            JailSetupFailed: no guest can be made.
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
        allowance = self._allowance(limits)
        while True:
            if await self._jails.wait_for_renewal():
                guest = self.lease_ready(kind, limits)
                if guest is not None:
                    return guest
            jail = self._jails.idle.pop() if self._jails.idle else await self._jails.make()
            try:
                zygote = await self._zygotes.get(kind)  # last: it may have died while a jail was made
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

    def keep(self, guest: Guest) -> None:
        """Do not count a guest that stays, such as a session, among the busy ones."""
        self._staying.add(guest.number)

    def release(self, guest: Guest) -> None:
        """Take a guest back whose run is over and entirely read. Its jail is reused if it is pristine."""
        if self._staying:
            self._staying.discard(guest.number)
        guest.close()
        self._jails.release(guest.jail, guest.has_ended)
        if self._trimming is None:
            self._trim_later()

    # ---- ahead of demand

    def refill(self, kind: str) -> None:
        """Fork guests ahead of demand. Called after an answer, never before.

        Several in a row cost less each than one after every answer, and most programs then run without a fork beside
        them. So a few may be missing, until no request has come for a moment.
        """
        missing = self._settings.ready_guests - len(self._ready[kind])
        if missing >= self._burst:
            self._fill(kind)
        elif missing > 0 and kind not in self._filling:
            self._filling[kind] = self.loop.call_later(_QUIET_SECONDS, self._fill, kind)

    def _fill(self, kind: str) -> None:
        waiting = self._filling.pop(kind, None)
        if waiting is not None:
            waiting.cancel()
        self._wanting.discard(kind)
        ready = self._ready[kind]
        missing = self._settings.ready_guests - len(ready)
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
        """Note that a program has started: guests can be made."""
        self._start_failures = 0

    def drop_taken_away(self) -> None:
        """Stop using guests and jails that were ended from outside: their end is reported a moment later."""
        for ready in self._ready.values():
            for guest in [each for each in ready if each.jail.was_taken_away()]:
                ready.remove(guest)
        self._jails.idle[:] = [jail for jail in self._jails.idle if not jail.was_taken_away()]

    def let_go_of_unused(self) -> None:
        """Retire zygotes with packages, and their ready guests, that were unused for a while; replace old ones."""
        self._zygotes.rotate_old()
        for kind in self._zygotes.let_go_of_unused():
            for guest in list(self._ready[kind]):
                guest.jail.kill()
            self._ready[kind].clear()

    # ---- jails

    def owner_of(self, jail_slot: JailSlot) -> int | None:
        """The host's uid of guests in this slot; None if it is that of this process."""
        return self.walls.owner_of(jail_slot.uid)

    def open_work_dir(self, guest: Guest, directory: int) -> artifacts.OnWorkDir:
        """Check the directory that a guest has sent, and return what calls a function on it with the guest's rights.

        Raises:
            SandboxFault: it was not mounted for a program.
        """
        self.walls.check_dirs([directory])
        return functools.partial(artifacts.on_thread, directory, self.owner_of(guest.jail.jail_slot))

    def _trim_later(self) -> None:
        if not self._is_closing:
            self._trimming = self.loop.call_later(self._settings.jail_seconds, self._trim_idle_jails)

    def _trim_idle_jails(self) -> None:
        """Once nothing runs, give up the jails of the last burst: what is kept must not depend on past load."""
        self._trimming = None
        if self.busy_guests > 0:
            self._trim_later()
            return
        self._jails.give_up_idle()

    def _jail_added(self) -> None:
        if self._trimming is None:
            self._trim_later()
        for kind in tuple(self._wanting):
            self._fill(kind)

    def _jail_changed(self, jail: Jail) -> None:
        for zygote in self._zygotes:
            zygote.forget_jail(jail.number)


def read_failure(peer: channel.Peer) -> str:
    """Why a guest could not start, as it has reported it."""
    try:
        message, _, sent = channel.receive(peer, FIRST_WORD_DESCRIPTORS, channel.NOW)
    except (BlockingIOError, channel.ChannelClosed, OSError):
        return "it reported nothing"
    for descriptor in sent:
        os.close(descriptor)
    return f"{message.get('failed')}: {message.get('reason')}" if "failed" in message else "it had started"
